"""The Lua scripts: what happens on a Redis server in one go. Data, sent once and called by their digest.

Every script begins by looking at the server's clock and answers with it first, in microseconds. One that
was sent so long ago that its caller has given up (a server that hung, a network that kept it) does nothing.
What says no more than yes or no answers with the time alone, which is negative for no: one number is read at a
fraction of what a list costs.

What is kept of a workflow is one list: its head, then its steps, the newest first. The head is
`version:marks:doubtful from:length of state:` followed by the state and the packed record; the marks say in which
indexes the workflow is: `u` states in use, `t` timers, `c` claimed, `d` marked in doubt, `e` expires.
"""

from dataclasses import dataclass, field
from hashlib import sha1

_PRELUDE = """
local t = redis.call('TIME')
local us = t[1] * 1000000 + t[2]
if ARGV[1] ~= '' and us > tonumber(ARGV[1]) then
  return redis.error_reply('LATE the caller has given up')
end
"""
_PARSE = """
local function parse(head)
  local version, marks, doubtful, length, at = string.match(head, '^(%d+):(%a*):([^:]*):(%d+):()')
  return version, marks, doubtful, string.sub(head, at, at + length - 1)
end
local function has(marks, mark)
  return string.find(marks, mark, 1, true) ~= nil
end
local function count(states, state, by)
  if redis.call('HINCRBY', states, state, by) <= 0 then redis.call('HDEL', states, state) end
end
"""


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """A script.

    Attributes:
        text: In Lua, after the prelude.
        digest: By which the server knows it.
    """

    text: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _PRELUDE + self.text)
        digest = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "digest", digest)


LAYOUT = Script("""
redis.call('SETNX', KEYS[1], ARGV[2])
return {us, redis.call('GET', KEYS[1])}
""")
"""Keep a value under KEYS[1] unless there is one, and answer with what is there."""

READ = Script("""
local found = {us}
for at, key in ipairs(KEYS) do found[at + 1] = redis.call('LINDEX', key, 0) end
return found
""")
"""Answer with the heads of workflows."""

WRITE = Script(
    _PARSE
    + """
local key, states, names, found_by, due, claimed, expires = unpack(KEYS)
local expected, head, step, member, other = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local old = redis.call('LINDEX', key, 0)
local version, marks, _, state = '0', '', '', ''
if old then version, marks, _, state = parse(old) end
if version ~= expected then return -us end

-- The first command is one that a full server refuses, so that nothing is done by halves.
if not old then
  if step ~= '' then redis.call('LPUSH', key, step, head) else redis.call('LPUSH', key, head) end
  redis.call('ZADD', names, 0, member)
  if other ~= '' then redis.call('ZADD', found_by, 0, other) end
elseif step ~= '' then
  redis.call('LSET', key, 0, step)
  redis.call('LPUSH', key, head)
  redis.call('LTRIM', key, 0, ARGV[9])
else
  redis.call('LSET', key, 0, head)
end

local _, new_marks, _, new_state = parse(head)
local was, is = has(marks, 'u'), has(new_marks, 'u')
if was ~= is or state ~= new_state then
  if is then count(states, new_state, 1) end
  if was then count(states, state, -1) end
end
local function note(index, mark, score)
  if has(new_marks, mark) then
    redis.call('ZADD', index, score, member)
  elseif has(marks, mark) then
    redis.call('ZREM', index, member)
  end
end
note(due, 't', ARGV[7])
note(expires, 'e', ARGV[8])
note(claimed, 'c', 0)
return us
"""
)
"""Write a workflow if its version is the expected one: yes when it was."""

HISTORY = Script("""
return {us, redis.call('LRANGE', KEYS[1], 1, ARGV[2])}
""")

STATES = Script("""
return {us, redis.call('HKEYS', KEYS[1])}
""")

SOONEST = Script("""
return {us, redis.call('ZRANGE', KEYS[1], 0, ARGV[2], 'WITHSCORES')}
""")

EXPIRED = Script("""
return {us, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[2], 'WITHSCORES', 'LIMIT', 0, ARGV[3])}
""")

NAMED = Script("""
return {us, redis.call('ZRANGEBYLEX', KEYS[1], ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[4])}
""")

LIST = Script(
    _PARSE
    + """
local prefix, low, high, wanted = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local by_state, state, doubtful_before = ARGV[6] == '1', ARGV[7], tonumber(ARGV[8])
local found, looks, bytes = {us, '', 0}, 1000, 0
while true do
  local most = math.min(looks, 100)
  if not by_state and not doubtful_before then most = math.min(most, wanted) end
  local members = redis.call('ZRANGEBYLEX', KEYS[1], low, high, 'LIMIT', 0, most)
  for _, member in ipairs(members) do
    low = '(' .. member
    local head = redis.call('LINDEX', prefix .. member, 0)
    if head then
      local _, marks, doubtful, its = parse(head)
      local fits = not by_state or its == state
      if fits and doubtful_before then
        fits = has(marks, 'd') or (has(marks, 'c') and tonumber(doubtful) < doubtful_before)
      end
      if fits then
        found[#found + 1] = member
        found[#found + 1] = head
        wanted, bytes = wanted - 1, bytes + #head
        if wanted <= 0 or bytes > 4000000 then
          found[2] = low
          return found
        end
      end
    end
  end
  looks = looks - #members
  if #members < most then
    found[3] = 1
    return found
  end
  if looks <= 0 then
    found[2] = low
    return found
  end
end
"""
)
"""Answer with where to go on, whether this was all, and members with their heads. The work of one call is bounded."""

REMOVE = Script(
    _PARSE
    + """
local names, found_by, due, expires = unpack(KEYS)
local gone = 0
for at = 3, #ARGV, 2 do
  local member, other, key, states = ARGV[at], ARGV[at + 1], KEYS[at + 2], KEYS[at + 3]
  local score = redis.call('ZSCORE', expires, member)
  if score and tonumber(score) < tonumber(ARGV[2]) then
    local head = redis.call('LINDEX', key, 0)
    -- First of all, because a full server allows it, and then the rest of the script too.
    redis.call('UNLINK', key)
    if head then
      local _, marks, _, state = parse(head)
      if has(marks, 'u') then count(states, state, -1) end
    end
    redis.call('ZREM', names, member)
    redis.call('ZREM', found_by, other)
    redis.call('ZREM', due, member)
    redis.call('ZREM', expires, member)
    gone = gone + 1
  end
end
return {us, gone}
"""
)
"""Remove those of some workflows that still expired before a time; answer with how many."""

PLACES_TAKE = Script("""
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local all, domain, id = KEYS[1], KEYS[2], ARGV[2]
redis.call('ZREMRANGEBYSCORE', all, '-inf', now)
redis.call('ZREMRANGEBYSCORE', domain, '-inf', now)
local limit, domain_limit, ends = tonumber(ARGV[4]), tonumber(ARGV[5]), now + tonumber(ARGV[6])
if limit and redis.call('ZCARD', all) >= limit then return {us, 0} end
if domain_limit and redis.call('ZCARD', domain) >= domain_limit then return {us, 0} end
redis.call('ZADD', all, ends, ARGV[3])
redis.call('ZADD', domain, ends, id)
for _, key in ipairs(KEYS) do
  if redis.call('PTTL', key) < tonumber(ARGV[6]) then redis.call('PEXPIRE', key, ARGV[6] + 1000) end
end
return {us, 1}
""")
"""Take a place among all and among those to one specialist, within limits or, without them, in any case."""

PLACES_COUNT = Script("""
return {us, redis.call('ZCOUNT', KEYS[1], '(' .. t[1] * 1000 + math.floor(t[2] / 1000), '+inf')}
""")

PLACES_FREE = Script("""
redis.call('ZREM', KEYS[1], ARGV[3])
redis.call('ZREM', KEYS[2], ARGV[2])
return {us}
""")

ROUTES_WRITE = Script("""
local kept = redis.call('HGET', KEYS[1], 'v') or '0'
if kept ~= ARGV[2] then return {us, 0} end
if ARGV[3] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('HSET', KEYS[1], 'v', ARGV[2] + 1, 'r', ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return {us, 1}
""")
"""Keep routes if the version is the expected one, or remove them: 1 when it was."""

PIN_CHECK = Script("""
redis.call('HSETNX', KEYS[1], ARGV[2], ARGV[3])
local known = redis.call('HGET', KEYS[1], ARGV[2])
if known ~= ARGV[3] then redis.call('HSET', KEYS[2], ARGV[2], ARGV[3]) end
return {us, known == ARGV[3] and 1 or 0}
""")

PIN_ACCEPT = Script("""
local waits = redis.call('HGET', KEYS[2], ARGV[2])
if not waits then return {us, 0} end
redis.call('HSET', KEYS[1], ARGV[2], waits)
redis.call('HDEL', KEYS[2], ARGV[2])
return {us, 1}
""")

PINS = Script("""
return {us, redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}
""")
