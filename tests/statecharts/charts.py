"""Statechart classes of python-statemachine, as a team may have them."""

from statemachine import State, StateChart


class Invoice(StateChart):
    draft = State(initial=True)
    review = State()
    paid = State(final=True)

    submit = draft.to(review)
    reject = review.to(draft)
    pay = review.to(paid, cond="covers")

    def covers(self, arguments: dict | None = None) -> bool:
        return (arguments or {}).get("amount", 0) >= 5


class Approval(StateChart):
    class review(State.Parallel):
        class legal(State.Compound):
            pending = State(initial=True)
            ok = State(final=True)
            legal_ok = pending.to(ok)

        class finance(State.Compound):
            waiting = State(initial=True)
            fine = State(final=True)
            finance_ok = waiting.to(fine)

    done = State(final=True)
    done_state_review = review.to(done)


class Remembers(StateChart):
    class work(State.Compound):
        first = State(initial=True)
        second = State()
        h = __import__("statemachine").HistoryState()
        step = first.to(second)

    pause = State(final=True)
    stop = work.to(pause)


class Asynchronous(StateChart):
    a = State(initial=True)
    b = State(final=True)
    go = a.to(b)

    async def on_go(self) -> None: ...


class Needs(StateChart):
    a = State(initial=True)
    b = State(final=True)
    go = a.to(b)

    def __init__(self, model: object, account: str) -> None:
        super().__init__(model)
