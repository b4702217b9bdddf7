"""The page of one job."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from service.cli.top.data import Story
from service.cli.top.story import headline, sections

BAR_CELLS_MAX = 500


def bar_text(text: str) -> Text:
    """The text of a bar, which is as wide as the terminal."""
    return Text(text.ljust(BAR_CELLS_MAX))


class JobScreen(Screen[None]):
    """A job's story. The application reads it and calls :meth:`show`."""

    BINDINGS: ClassVar = [Binding("escape,q,left,backspace", "leave", "Back", key_display="Esc")]

    def __init__(self, job_id: int) -> None:
        super().__init__()
        self.job_id = job_id
        self.story: Story | None = None

    def compose(self) -> ComposeResult:
        """Head, sections, keys."""
        yield Static(id="link", markup=False)
        yield Static(f"Job {self.job_id}: loading", id="headline", classes="bar", markup=False)
        yield VerticalScroll(id="story")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Let the arrow keys scroll."""
        self.query_one("#story").focus()

    @property
    def has_widgets(self) -> bool:
        """False before the page is composed, and while it or the application closes, which takes the widgets away first."""
        return self.is_attached and all(self.query(name) for name in ("#link", "#headline", "#story"))

    async def show(self, story: Story) -> None:
        """Show what is known now. Sections keep their places, so the page does not jump."""
        first, self.story = self.story is None, story
        self.query_one("#headline", Static).update(bar_text(headline(story.job)))
        body = self.query_one("#story", VerticalScroll)
        for number, section in enumerate(sections(story)):
            if first:
                await body.mount(
                    Static(Text(section.title), classes="title", markup=False),
                    Static(section.text, id=f"part-{number}", classes="cut" if section.cut else "", markup=False),
                )
            else:
                body.query_one(f"#part-{number}", Static).update(section.text)
        self.refresh_bindings()

    def show_link(self, text: Text | None) -> None:
        """Why the page is stale; None while it is not."""
        self.query_one("#link", Static).update(text or Text())
        self.set_class(text is not None, "stale")

    def action_leave(self) -> None:
        """Back to the overview."""
        self.dismiss(None)
