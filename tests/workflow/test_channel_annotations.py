"""Which parameters are channels: by what their annotations mean, not by what their text contains."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest

import rlinf_lab as lab
import rlinf_lab as toolkit
from rlinf_lab.errors import WorkflowError
from rlinf_lab.workflow.annotations import channel_ends
from rlinf_lab.workflow.source import computes_first
from rlinf_lab.workflow.specs import READ, WRITE
from rlinf_lab.workflow.worker import Inbox, Outbox

if TYPE_CHECKING:
    import nowhere
    from nowhere import InboxOfMail, Missing  # type: ignore[import-not-found]

Stream = lab.Inbox[int]


class InboxSettings:
    pass


class Outboxes(list[Any]):
    pass


class Special(Inbox[int], typing.Protocol):
    pass


def meant(
    self: Any, a: lab.Inbox, b: Inbox[int], c: toolkit.Outbox, d: Optional[lab.Outbox], e: Inbox | None, f: Annotated[Inbox[int], "note"],  # noqa: UP045
    g: Stream, h: Special, *more: lab.Inbox, i: lab.Inbox,
) -> None: ...  # fmt: skip


def other(self: Any, a: InboxSettings, b: Outboxes, c: dict[str, Inbox], d: str = "Inbox", e: list[InboxSettings] | None = None, f=None) -> None: ...  # type: ignore[no-untyped-def]


def unknown(self: Any, a: Missing, b: nowhere.Inbox[Missing] | None, c: nowhere.InboxSettings, d: Inbox.Mail | InboxOfMail, e: lab.Outbox, f: Outbox[Missing]) -> None: ...


def both(self: Any, a: Inbox | Outbox) -> None: ...


def test_what_means_a_channel_is_one() -> None:
    assert channel_ends(meant) == {
        "a": READ, "b": READ, "c": WRITE, "d": WRITE, "e": READ, "f": READ, "g": READ, "h": READ, "more": READ, "i": READ,
    }  # fmt: skip


def test_what_only_contains_the_word_is_none() -> None:
    assert channel_ends(other) == {}


def test_names_that_cannot_be_evaluated_are_compared_whole() -> None:
    assert channel_ends(unknown) == {"b": READ, "e": WRITE, "f": WRITE}


def test_both_ends_at_once_are_refused() -> None:
    with pytest.raises(WorkflowError, match=r"'a' is annotated.*reads and writes.*Next"):
        channel_ends(both)


def test_annotations_that_are_objects_count_too() -> None:
    def method(self, a, b, c):  # type: ignore[no-untyped-def]
        pass

    method.__annotations__ = {"a": lab.Inbox[int], "b": Optional["lab.Outbox"], "c": InboxSettings}
    assert channel_ends(method) == {"a": READ, "b": WRITE}


class Reads(lab.Worker):
    def go(self, settings: InboxSettings) -> int:
        return len(settings.get())  # type: ignore[attr-defined]

    def drink(self, inbox: Stream) -> list[int]:
        return inbox.get_all()


def test_settings_called_like_a_channel_pass_as_a_value() -> None:
    flow = lab.Workflow("settings")
    reads = flow.worker(Reads, name="reads")
    flow.iteration(lambda: reads.go(InboxSettings()))
    assert flow.graph.channels == ()
    assert computes_first(Reads.go, Reads) and not computes_first(Reads.drink, Reads)


def test_of_what_cannot_be_evaluated_the_names_decide_where_they_stand() -> None:
    """Not every Inbox in a text is an end: not one in a literal, a note, or inside of another type."""
    told = {
        "Absent | Inbox": "read", "Optional[lab.Outbox[Absent]]": "write", "Annotated[Inbox[Absent], 'of mails']": "read",
        "Annotated[Absent, 'what lies in the Inbox']": None, "Literal['Inbox', 'Sent'] | Absent": None, "dict[Absent, lab.Inbox]": None,
        "Absent[Inbox]": None, "Callable[[Inbox], Absent]": None,
    }  # fmt: skip
    for annotation, end in told.items():
        def method(self: Any, a: Any) -> None: ...

        method.__annotations__ = {"a": annotation}
        assert channel_ends(method).get("a") == end, annotation
