// Takes the official client through steps and prints what each gave: one line of JSON for the connection, then one
// for each step.
//
//   node drive.mjs '{"server": {"url": ...} | {"command": ..., "args": [...]}, "mode": ..., "steps": [...]}'
//
// A step is ["list"], ["call", tool, arguments], or ["heard", n]: wait until n changes of the list have been heard,
// and say what the list was after the last of them.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const PATIENCE_MS = 60_000;
const { server, mode, steps } = JSON.parse(process.argv[2]);

const lists = [];
let woken = () => {};

const client = new Client(
    { name: 'drive', version: '1.0.0' },
    {
        versionNegotiation: { mode },
        listChanged: {
            tools: {
                debounceMs: 0,
                onChanged: (error, tools) => {
                    lists.push(error ? { error: String(error) } : { tools: tools.map(tool => tool.name) });
                    woken();
                }
            }
        }
    }
);

async function heard(number) {
    const late = setTimeout(() => fail(`heard ${lists.length} changes, not ${number}`), PATIENCE_MS);
    while (lists.length < number) await new Promise(resolve => (woken = resolve));
    clearTimeout(late);
    return { count: lists.length, ...lists.at(-1) };
}

async function call(name, args) {
    try {
        return await client.callTool({ name, arguments: args });
    } catch (error) {
        return { thrown: { code: error.code, message: error.message } };
    }
}

const doing = {
    list: async () => (await client.listTools()).tools,
    call,
    heard
};

function print(value) {
    process.stdout.write(`${JSON.stringify(value)}\n`);
}

function fail(why) {
    console.error(why);
    process.exit(1);
}

const transport = server.url ? new StreamableHTTPClientTransport(new URL(server.url)) : new StdioClientTransport(server);
await client.connect(transport);
print({
    version: client.getNegotiatedProtocolVersion(),
    capabilities: client.getServerCapabilities(),
    listening: client.autoOpenedSubscription?.honoredFilter ?? null
});
for (const [step, ...given] of steps) print(await doing[step](...given));
await client.close();
