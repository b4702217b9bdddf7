"""Questions before a change, the menu of columns, one line of input, and the help."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from service.cli.output import printable


class Confirm(ModalScreen[bool]):
    """A question; only ``y`` means yes."""

    BINDINGS: ClassVar = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,enter,q", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question and the keys."""
        with Vertical(classes="dialog"):
            yield Static(Text(printable(self._question), overflow="fold"), id="question", markup=False)
            yield Static(Text("[y] yes   [n] no", style="bold"), markup=False)

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(yes)


class Ask(ModalScreen[str | None]):
    """One line of text; None if it is left by Escape."""

    BINDINGS: ClassVar = [Binding("escape", "leave", "Leave")]

    def __init__(self, title: str, value: str = "", restrict: str | None = None) -> None:
        super().__init__()
        self._title = title
        self._value = value
        self._restrict = restrict

    def compose(self) -> ComposeResult:
        """The title and the line."""
        with Vertical(classes="dialog"):
            yield Static(Text(printable(self._title)), markup=False)
            yield Input(self._value, restrict=self._restrict, max_length=200, compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with the text."""
        event.stop()
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        """Close without a text."""
        self.dismiss(None)


class Choose(ModalScreen[int | None]):
    """One of several lines; None if it is left."""

    BINDINGS: ClassVar = [Binding("escape,q", "leave", "Leave")]

    def __init__(self, title: str, choices: Sequence[str], chosen: int) -> None:
        super().__init__()
        self._title = title
        self._choices = choices
        self._chosen = chosen

    def compose(self) -> ComposeResult:
        """The title and the lines."""
        with Vertical(classes="dialog"):
            yield Static(Text(self._title, style="bold"), markup=False)
            yield OptionList(*(Option(Text(choice)) for choice in self._choices), compact=True)

    def on_mount(self) -> None:
        """Begin at the present choice."""
        self.query_one(OptionList).highlighted = self._chosen

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close with the choice."""
        event.stop()
        self.dismiss(event.option_index)

    def action_leave(self) -> None:
        """Close without a choice."""
        self.dismiss(None)


class Help(ModalScreen[None]):
    """Keys and signs."""

    BINDINGS: ClassVar = [Binding("escape,q,f1,h,question_mark,enter", "leave", "Close")]

    def __init__(self, lines: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        """A line a key."""
        text = Text()
        for key, does in self._lines:
            text.append(f"{key:<14}", style="bold").append(f"{does}\n")
        text.rstrip()
        with VerticalScroll(classes="dialog"):
            yield Static(text, markup=False)

    def action_leave(self) -> None:
        """Close."""
        self.dismiss(None)
