"""The application: it reads the service, shows what it read, and sends what the user asks for.

Events of the service and the clock only say that something may have changed; what is shown is always one answer of the API.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from service.cli.output import printable
from service.cli.top.data import RUNNING_MAX, Picture, Reader
from service.cli.top.dialogs import Ask, Choose, Confirm, Help
from service.cli.top.fields import QUEUE, RUNNING, Row, job_number, matches
from service.cli.top.gpu_map import LEGEND, Letters, jobs_of
from service.cli.top.job_screen import JobScreen, bar_text
from service.cli.top.strip import Link, link_line, strip_lines
from service.cli.top.style import CSS
from service.cli.top.widgets import GpuPane, JobTable
from service.client import TERMINAL_STATES, ApiError, AsyncClient, ClientError, Unreachable
from service.domain.access import Role
from service.domain.counts import count_of
from service.wire.access import IdentityDocument

PERIOD_S = 5.0
"""Between two looks without an event: progress and ages change without one."""
RETRY_S = 2.0
CYCLE_S = 1.0
"""From a change to a second look: the next cycle makes it, and not each is an event."""
LOW_LINES = 30
"""A terminal with fewer lines has a shorter head."""
GAP_S = 0.5
"""From an event to the look: events come in bursts."""

_CHANGES = frozenset({"cancel", "hold", "release", "hold_or_release", "priority"})
"""Actions that change a job, which a viewer may not."""


def _key(keys: str, action: str, words: str, display: str = "") -> list[Binding]:
    """A binding with its first key in the footer; the others work as well."""
    first, *others = keys.split(",")
    shown = Binding(first, action, words, key_display=display or None, show=bool(display))
    return [shown, *(Binding(other, action, words, show=False) for other in others)]


class Top(App[None]):
    """The overview; Enter opens the page of a job."""

    CSS = CSS
    TITLE = "sooner top"
    ENABLE_COMMAND_PALETTE = False
    VERTICAL_BREAKPOINTS = [(0, "-low"), (LOW_LINES, "-high")]  # noqa: RUF012 (as Textual declares it)
    BINDINGS: ClassVar = [
        *_key("f1,h,question_mark", "help", "Help", "F1"),
        *_key("f3,slash", "search", "Search", "F3"),
        *_key("f4,backslash", "filter", "Filter", "F4"),
        *_key("f5,t", "tree", "Tree", "F5"),
        *_key("f6,less_than_sign,greater_than_sign", "sort", "Sort", "F6"),
        *_key("f7,p", "priority", "Prio", "F7"),
        *_key("f8", "hold_or_release", "Hold", "F8"),
        *_key("o", "hold", "Hold"),
        *_key("r", "release", "Release"),
        *_key("f9,k", "cancel", "Cancel", "F9"),
        *_key("f10,q,ctrl+c", "quit", "Quit", "F10"),
        *_key("n", "search_on", "Next match"),
        *_key("I", "invert", "Invert the order"),
        *_key("right_square_bracket", "turn(True)", "Next page of the queue"),
        *_key("left_square_bracket", "turn(False)", "Previous page of the queue"),
        *_key("escape", "unfilter", "Remove the filter"),
    ]

    def __init__(self, client: AsyncClient, identity: IdentityDocument) -> None:
        """``client`` is closed at the end."""
        # The colours and the background are those of the terminal; so NO_COLOR removes them instead of making them grey.
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.client = client
        self.role, self.user = Role(identity["role"]), identity["user"]
        self.reader = Reader(client)
        self.picture: Picture | None = None
        self.link = Link(client.url, time.monotonic())
        self.wanted = ""
        """What the filter looks for; "" without a filter."""
        self._searched = ""
        self._pages: list[tuple[str | None, int]] = [(None, 0)]
        """Cursor of each page of the queue up to the one that is shown, and how many jobs are before it."""
        self._wake = asyncio.Event()
        self._soon = False
        self._letters = Letters()
        self.strip = Static(id="strip", markup=False)
        self.map_bar, self.running_bar, self.queue_bar = (
            Static(classes="bar", id=f"{name}-bar", markup=False) for name in ("map", "running", "queue")
        )
        self.map = GpuPane(self._letters, id="map")
        self.running = JobTable(RUNNING, self._letters.mark, id="running")
        self.queue = JobTable(QUEUE, id="queue")

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield self.strip
        yield self.map_bar
        yield self.map
        yield self.running_bar
        yield self.running
        yield self.queue_bar
        yield self.queue
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Start to read."""
        self.strip.update(Text(f"Reading from {self.link.address}"))
        self.queue.focus()
        self.set_interval(1.0, self._show_strip)
        self.run_worker(self._keep_fresh(), name="looks")
        self.run_worker(self._follow(), name="events")

    async def on_unmount(self) -> None:
        """Close the connections, over which nothing may be asked any more then."""
        self.workers.cancel_all()
        await self.client.close()

    # Reading

    async def _keep_fresh(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._look()
                self.link = Link(self.link.address, time.monotonic())
            except Unreachable as error:
                self.link = replace(self.link, broken=f"DISCONNECTED: {error.cause}", retry_s=RETRY_S)
            except ClientError as error:
                self.link = replace(self.link, broken=f"NO NEW DATA: {error}", retry_s=PERIOD_S)
            self._show_strip()
            try:
                await asyncio.wait_for(self._wake.wait(), self.link.retry_s or PERIOD_S)
            except TimeoutError:
                pass

    async def _look(self) -> None:
        top = self.top_screen
        if isinstance(top, JobScreen):
            await self._look_at_job(top)
            return
        cursor, before = self._pages[-1]
        wanted = self.wanted
        try:
            picture = await self.reader.picture(cursor, (lambda row: matches(row, wanted)) if wanted else None)
        except ApiError as error:
            if cursor is None or error.status != 422:
                raise
            self._pages = [(None, 0)]  # The cursor is of another service or release.
            self._wake.set()
            return
        if (cursor, wanted) != (self._pages[-1][0], self.wanted):
            return  # Another page was asked for meanwhile.
        if before and not picture.queue.items and not wanted:
            self._pages.pop()  # The queue is shorter now.
            self._wake.set()
            return
        self.picture = picture
        self._show()

    async def _look_at_job(self, screen: JobScreen) -> None:
        try:
            story = await self.reader.story(screen.job_id)
        except ApiError as error:
            if error.status != 404 or screen.story is not None:
                raise
            self._say(f"There is no job {screen.job_id}, or you may not see it.", wrong=True)
            screen.dismiss(None)
            return
        if screen.has_widgets:
            await screen.show(story)

    async def _follow(self) -> None:
        """Wake the reading for each event. A broken stream is opened again; the looks show whether there is a connection."""
        while True:
            try:
                async for _ in self.client.follow():
                    self._look_soon()
            except ClientError:
                pass
            self.look()
            await asyncio.sleep(RETRY_S)

    def look(self) -> None:
        """Read now."""
        self._wake.set()

    def _look_soon(self) -> None:
        def now() -> None:
            self._soon = False
            self.look()

        if not self._soon:
            self._soon = True
            self.set_timer(GAP_S, now)

    # Showing

    def _show(self) -> None:
        if self.picture is None or self.top_screen is None:
            return
        self._letters.keep(jobs_of(self.picture.gpus))
        self.running.show(self._wanted_of(self.picture.running))
        self.queue.show(self.picture.queue.items)
        self.map.show(self.picture.gpus)
        self._show_bars()
        self._show_choice()

    def _show_bars(self) -> None:
        assert self.picture is not None
        running, page = self.picture.running, self.picture.queue
        self.map_bar.update(bar_text(f"GPUs   {LEGEND}"))
        shown = f"{len(self._wanted_of(running)):,} of " if self.wanted else ""
        count = f"the newest {RUNNING_MAX:,}" if len(running) >= RUNNING_MAX else f"{len(running):,}"
        self.running_bar.update(
            bar_text(f"On GPUs   {shown}{count} {'job' if count == '1' else 'jobs'}{self._order(self.running)}")
        )
        before, found = self._pages[-1][1], len(page.items)
        if self.wanted:
            looked = f"{before + 1:,}-{before + page.looked:,} of {page.total:,}"
            text = f"{count_of(found)} with {printable(self.wanted)!r} among {looked}"
        else:
            text = f"{before + 1:,}-{before + found:,} of {page.total:,}" if found else "no job waits"
        turns = f"  {'[ previous  ' if before else ''}{'] next' if page.next is not None else ''}".rstrip()
        order, note = self._order(self.queue), ""
        if not order:
            order, note = f", in the order of {printable(page.policy)}", f"  {printable(page.note or '')}"
        self.queue_bar.update(bar_text(f"Queue   {text}{order}{turns}{note}"))

    def _wanted_of(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that pass the filter."""
        return [row for row in rows if not self.wanted or matches(row, self.wanted)]

    def _order(self, table: JobTable) -> str:
        """The order that the user has chosen, for a bar; empty for that of the service."""
        order = table.order
        words = [f"by {order.by.header}"] if order.by is not None else []
        words += ["inverted"] if order.inverted else []
        words += ["by user"] if order.tree else []
        # The service gives the queue a page at a time, so the whole of it cannot be sorted here.
        part = "this page " if table is self.queue else ""
        return f", {part}{', '.join(words)}" if words else ""

    def _show_strip(self) -> None:
        top = self.top_screen
        if top is None:
            return
        now_s = time.monotonic()
        broken = link_line(self.link, now_s, self.size.width)
        if self.picture is not None:
            lines = strip_lines(
                self.picture.overview, self.link, now_s, self.size.width, low=self.size.height < LOW_LINES
            )
            self.strip.update(Text("\n").join(lines))
        elif broken is not None:
            self.strip.update(broken)
        self.screen_stack[0].set_class(broken is not None, "stale")
        if isinstance(top, JobScreen) and top.has_widgets:
            top.show_link(broken)

    def _show_choice(self) -> None:
        if self.top_screen is None:
            return
        row = self.table.chosen
        self.map.choose(job_number(row) if row is not None else None)
        self.refresh_bindings()

    def on_resize(self) -> None:
        """Lay out the lines at the top again."""
        self._show_strip()

    # The chosen job

    @property
    def top_screen(self) -> Screen[Any] | None:
        """What is on top; None while the application ends."""
        stack = self.screen_stack
        return stack[-1] if stack else None

    @property
    def table(self) -> JobTable:
        """The table that has the focus, or had it last."""
        if self.running.has_focus:
            return self.running
        return self.queue

    def target(self) -> Row | None:
        """The job that a key is about."""
        screen = self.top_screen
        if isinstance(screen, JobScreen):
            return screen.story.job if screen.story is not None else None
        return self.table.chosen

    def on_descendant_focus(self) -> None:
        """Another table may have the chosen job."""
        self._show_choice()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """The cursor has moved."""
        self._show_choice()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter opens the job."""
        row = self.table.chosen
        if row is not None:
            self._open(job_number(row))

    def on_job_table_past_end(self, event: JobTable.PastEnd) -> None:
        """From one table to the other, or to another page of the queue."""
        if event.table is self.running and event.down:
            self.queue.focus()
        elif event.table is self.queue and not event.down and len(self._pages) == 1:
            if self.running.row_count:
                self.running.focus()
        elif event.table is self.queue:
            self.action_turn(event.down)

    def _open(self, job_id: int) -> None:
        self.push_screen(JobScreen(job_id), lambda _: self.look())
        self.look()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Changes are hidden from those who may make none, and grey for a job that they may not change."""
        if action not in _CHANGES:
            return not isinstance(self.top_screen, JobScreen) or action in ("help", "quit")
        if not self.role.covers(Role.SUBMITTER):
            return False
        row = self.target()
        allowed = row is not None and (self.role.covers(Role.OPERATOR) or row["user"] == self.user)
        return True if allowed and row is not None and row["state"] not in TERMINAL_STATES else None

    # Keys

    def action_help(self) -> None:
        """Keys and signs."""
        self.push_screen(Help(_HELP))

    def action_search(self) -> None:
        """Move to a job by a part of its texts; a number opens a job that is not shown."""

        def search(wanted: str | None) -> None:
            if wanted:
                self._searched = wanted
                self.action_search_on()

        self.push_screen(Ask("Search number, name, user, project, state, reason or server", self._searched), search)

    def action_search_on(self) -> None:
        """The next match, in the table with the focus and then in the other."""
        wanted = self._searched
        if not wanted:
            return
        other = self.queue if self.table is self.running else self.running
        if self.table.find(wanted):
            return
        if other.find(wanted):
            other.focus()
        elif wanted.isdecimal() and len(wanted) < 10 and int(wanted):
            self._open(int(wanted))
        else:
            self._say(f"Nothing on this page has {wanted!r}; F4 filters the whole queue.", wrong=True)

    def action_filter(self) -> None:
        """Show only the jobs that contain a text."""

        def chosen(wanted: str | None) -> None:
            if wanted is not None:
                self._filter(wanted)

        self.push_screen(Ask("Show only jobs with (empty: all)", self.wanted), chosen)

    def action_unfilter(self) -> None:
        """Show all jobs again."""
        if self.wanted:
            self._filter("")

    def _filter(self, wanted: str) -> None:
        self.wanted = wanted
        self._pages = [(None, 0)]
        self.look()

    def action_tree(self) -> None:
        """Group both tables by user, or not."""
        tree = not self.queue.order.tree
        for table in (self.running, self.queue):
            table.order.tree = tree
        self._show()

    def action_sort(self) -> None:
        """Choose the column that orders the table with the focus."""
        table = self.table
        fields = [each for each in table.fields if each.sort is not None]
        usual = "order of the policy" if table is self.queue else "newest first"
        now = fields.index(table.order.by) + 1 if table.order.by is not None else 0

        def chosen(index: int | None) -> None:
            if index is not None:
                table.order.by = fields[index - 1] if index else None
                self._show()

        title = "Sort this page of the queue by" if table is self.queue else "Sort by"
        self.push_screen(Choose(title, [usual, *(each.header for each in fields)], now), chosen)

    def action_invert(self) -> None:
        """Turn the order of the table with the focus."""
        self.table.order.inverted = not self.table.order.inverted
        self._show()

    def action_turn(self, down: bool) -> None:
        """Another page of the queue."""
        if self.picture is None:
            return
        page = self.picture.queue
        if down and page.next is not None and page.after == self._pages[-1][0]:
            self._pages.append((page.next, self._pages[-1][1] + page.looked))
        elif not down and len(self._pages) > 1:
            self._pages.pop()
        else:
            return
        self.queue.move_cursor(row=0)
        self.look()

    # Changes

    def action_cancel(self) -> None:
        """Cancel the job, if the user confirms it."""
        row = self.target()
        if row is None:
            return
        job = job_number(row)
        on = f" It holds {count_of(row['gpus'], 'GPU')}." if row["state"] != "queued" else ""

        def answered(yes: bool | None) -> None:
            if yes:
                self._change(f"cancel of job {job}", lambda: self.client.jobs.cancel(job))

        self.push_screen(Confirm(f"Cancel job {job}, {row['name']}, of {row['user'] or '-'}?{on}"), answered)

    def action_hold(self) -> None:
        """Keep the job from starting."""
        row = self.target()
        if row is not None:
            job = job_number(row)
            self._change(f"hold of job {job}", lambda: self.client.jobs.hold(job))

    def action_release(self) -> None:
        """Let a held job start."""
        row = self.target()
        if row is not None:
            job = job_number(row)
            self._change(f"release of job {job}", lambda: self.client.jobs.release(job))

    def action_hold_or_release(self) -> None:
        """Release a held job; hold another."""
        row = self.target()
        if row is not None and row["held"]:
            self.action_release()
        else:
            self.action_hold()

    def action_priority(self) -> None:
        """Ask for a new priority."""
        row = self.target()
        if row is None:
            return
        job = job_number(row)

        def answered(text: str | None) -> None:
            if text and text != "-":
                self._change(
                    f"priority {int(text)} of job {job}", lambda: self.client.jobs.set_priority(job, int(text))
                )

        title = f"Priority of job {job} (larger comes first)"
        self.push_screen(Ask(title, str(row["priority"]), restrict=r"-?[0-9]{0,9}"), answered)

    def _change(self, words: str, send: Callable[[], Awaitable[Any]]) -> None:
        async def work() -> None:
            try:
                await send()
            except ClientError as error:
                self._say(f"{words}: {error}", wrong=True)
            else:
                self._say(f"{words}: accepted")
            self.look()
            self.set_timer(CYCLE_S, self.look)

        self.run_worker(work(), name="change")

    def _say(self, text: str, *, wrong: bool = False) -> None:
        self.notify(printable(text), severity="error" if wrong else "information", timeout=6.0, markup=False)


_HELP: Sequence[tuple[str, str]] = (
    ("Up Down", "move; beyond the end: the next page of the queue"),
    ("Tab", "GPUs, jobs on GPUs, queue"),
    ("Enter", "open the job; Esc goes back"),
    ("[ ]", "previous and next page of the queue"),
    ("F3 /", "search; n: next match; a number opens that job"),
    ("F4 \\", "filter both tables; Esc removes it"),
    ("F5 t", "group by user"),
    ("F6 < >", "sort by a column (queue: this page); I inverts"),
    ("F7 p", "change the priority"),
    ("F8", "hold; a held job: release"),
    ("o r", "hold, release"),
    ("F9 k", "cancel, after a question"),
    ("F10 q", "quit"),
    ("GPUs", f"a letter a job; {LEGEND}"),
    ("S", "S starting, R running, P preempting, C cancelling"),
    ("DONE", "progress against the predicted total (median)"),
    ("10%-90%", "interval of the forecast beside its median"),
)
