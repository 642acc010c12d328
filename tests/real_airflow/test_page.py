"""The page in a browser: thirty days of landings of each kind, in the web interface of a real Airflow."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, Request, Route

from airflow_provider_webcollect.sandbox import Sandbox, Settings, demo
from demo import browser
from demo.real_airflow import RealAirflow

pytestmark = [
    pytest.mark.real_airflow,
    pytest.mark.skipif(browser.find_browser() is None, reason="no Chromium"),
]
PAGE = "/plugin/webcollect"
#: A text that must be shown as it is.
MARKUP = "<img src=x onerror=alert(1)>"
#: The file in which `make test` has put axe; without it, its test is skipped.
AXE = Path(os.environ.get("WEBCOLLECT_AXE", ""))


@pytest.fixture(scope="module")
def url(airflow: RealAirflow, connect_to: Callable[..., None]) -> Iterator[str]:
    """The URL of an Airflow with a history, whose service answers."""
    with Sandbox(Settings(speed=60)) as sandbox:
        connect_to(sandbox, access_token=sandbox.access_token)
        airflow.add_history(demo.TASK_ID)
        yield airflow.url


@pytest.fixture(scope="module")
def first_page(sign_in: Callable[..., None]) -> Iterator[Page]:
    with browser.open_page(str(browser.find_browser()), width=1400) as page:
        sign_in(page)
        yield page


@pytest.fixture
def new_page(first_page: Page) -> Iterator[Page]:
    """A page of a new visitor. It must raise no error, and send only GET requests and decisions."""
    page = first_page.context.new_page()
    page.add_init_script("localStorage.clear()")
    with no_problems(page):
        yield page
    page.close()


@pytest.fixture
def page(first_page: Page) -> Iterator[Page]:
    """A page for tests that do not leave it: Airflow's own part, the slowest, is loaded only once."""
    first_page.set_viewport_size({"width": 1400, "height": 1000})
    with no_problems(first_page):
        yield first_page
    first_page.unroute_all(behavior="wait")


@contextlib.contextmanager
def no_problems(page: Page) -> Iterator[None]:
    problems: list[str] = []

    def raised(error: Exception) -> None:
        problems.append(str(error))

    def sent(request: Request) -> None:
        if request.method != "GET" and not urlsplit(request.url).path.endswith("/decision"):
            problems.append(request.url)

    page.on("pageerror", raised)
    page.on("request", sent)
    yield
    page.remove_listener("pageerror", raised)
    page.remove_listener("request", sent)
    assert problems == []


def show(page: Page, url: str) -> Locator:
    """Go to the provider's page, and return it once it has read all its data."""
    if page.url == f"{url}{PAGE}":
        page.evaluate(
            """() => {
              const before = document.querySelector("webcollect-page");
              before.replaceWith(document.createElement("webcollect-page"));
            }"""
        )
    else:
        page.goto(f"{url}{PAGE}")
    view = page.locator("webcollect-page")
    view.locator("[data-filter=service]").wait_for()
    # the service may answer before Airflow's database does
    view.get_by_text("reading …").first.wait_for(state="detached")
    return view


@pytest.fixture
def view(page: Page, url: str) -> Locator:
    return show(page, url)


def series_of(view: Locator, dag_id: str) -> Locator:
    return view.locator(f'[data-series^="{dag_id}/"]').first


def marks(view: Locator) -> list[str | None]:
    return [series.get_attribute("data-marks") for series in view.locator("[data-series]").all()]


def height(part: Locator) -> float:
    box = part.bounding_box()
    assert box
    return box["height"]


def copied(page: Page, button: Locator) -> str:
    """Press a button, and return what it has copied."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button.press("Enter")
    return str(page.evaluate("navigator.clipboard.readText()"))


def told_by_arrow_keys(page: Page, chart: Locator, name: str) -> None:
    """Check that each key on the slider of a chart describes another part of the chart."""
    slider = chart.get_by_role("slider", name=name)
    slider.focus()
    told = [chart.locator(".told").inner_text()]
    for key in ("ArrowLeft", "Home"):
        page.keyboard.press(key)
        told.append(chart.locator(".told").inner_text())
        assert slider.get_attribute("aria-valuetext") == told[-1]
    assert len(set(told)) == 3


def change(page: Page, route: str, change: Callable[[Any], object]) -> None:
    """Change the answers of a route of the page from now on."""

    def answer(request: Route) -> None:
        response = request.fetch()
        data = response.json()
        change(data)
        request.fulfill(response=response, json=data)

    page.route(re.compile(rf"/webcollect/{route}(\?|$)"), answer)


def change_series(page: Page, change_one: Callable[[dict[str, Any]], object]) -> None:
    """Change each landing that the page gets from now on."""
    change(page, "landings", lambda data: [change_one(series) for series in data["series"]])


def fail(page: Page, route: str, status: int, detail: str, **options: Any) -> None:
    page.route(route, lambda request: request.fulfill(status=status, json={"detail": detail}), **options)


def refresh(view: Locator) -> None:
    view.get_by_role("button", name="Refresh").click()


def ago(**delta: float) -> str:
    return (datetime.datetime.now(datetime.UTC) - datetime.timedelta(**delta)).isoformat()


def test_each_part_of_the_top_line_shows_its_own(view: Locator) -> None:
    late = view.get_by_role("button", name="3 late")

    late.click()
    assert late.get_attribute("aria-pressed") == "true"
    assert marks(view) == ["failed late", "late", "late"]
    assert {item.get_attribute("data-attention") for item in view.locator("[data-attention]").all()} == {
        "late"
    }
    assert view.locator("[data-section=service]").is_hidden()

    late.click()
    assert view.locator("[data-series]").count() > 3
    assert view.locator("[data-section=service]").is_visible()


def test_the_names_of_dags_and_tasks_are_not_broken_within_words(page: Page, url: str) -> None:
    long = "webcollect_incremental_to_warehouse"
    change_series(page, lambda series: series.update(dag_id=f"{long}.{series['dag_id']}"))
    links = show(page, url).locator("[data-series] td > a")
    lines_of_words = """links => links.flatMap((link) => [...link.childNodes].flatMap((node) =>
      [...node.textContent.matchAll(/[^\\s_.]+/g)].map((word) => {
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        return range.getClientRects().length;
      })))"""
    assert set(links.evaluate_all(lines_of_words)) == {1}


def test_each_link_leads_somewhere_and_totals_are_sums(airflow: RealAirflow, url: str) -> None:
    dag_ids = {dag["dag_id"] for dag in airflow.get("dags")["dags"] if dag["bundle_name"] == "history"}
    all_series = airflow.get("../../webcollect/landings")["series"]
    made = [series for series in all_series if series["dag_id"] in dag_ids]
    assert made
    for series in made:
        dag, task_id, run_id = f"dags/{series['dag_id']}", series["task_id"], series["runs"][-1]["run_id"]
        airflow.get(f"{dag}/details")
        airflow.get(f"{dag}/tasks/{task_id}")
        airflow.get(f"{dag}/dagRuns/{run_id}/taskInstances/{task_id}/links", map_index=series["map_index"])
        airflow.get(f"assets/{series['asset_id']}")
        landed = [run for run in series["runs"] if run["state"] != "failed"]
        totals = [run["total_rows"] for run in landed]
        assert totals == list(itertools.accumulate(run["rows"] for run in landed)), dag


def test_trouble_comes_first_and_leads_to_the_log(page: Page, url: str) -> None:
    def leave_out_others(data: dict[str, Any]) -> None:
        # other tests may have left many failures, and the page reads the reasons of only the latest ones
        data["failures"] = [each for each in data["failures"] if each["dag_id"] == "flights_daily"]

    change(page, "activity", leave_out_others)
    view = show(page, url)
    sections = [section.get_attribute("data-section") for section in view.locator("section").all()]
    assert sections == ["attention", "landings", "running", "service"]
    marked = [bool(text) for text in marks(view)]
    assert marked == sorted(marked, reverse=True)

    failure = view.locator("[data-failure]").filter(has_text="flights_daily")
    # two runs that failed for the same reason are one entry
    failure.get_by_text("2 tasks:").wait_for()
    failure.get_by_role("link", name="Open the log").first.click()
    page.get_by_role("tab", name="Logs").or_(page.get_by_role("link", name="Logs")).first.wait_for()
    assert page.url.startswith(f"{url}/dags/flights_daily/runs/")
    assert parse_qs(urlsplit(page.url).query)["try_number"] == ["1"]
    page.get_by_role("button", name="Clear").first.wait_for()


def columns_of(view: Locator, dag_id: str) -> Locator:
    """Open the details of a landing, and return their part about columns."""
    series_of(view, dag_id).get_by_role("button").click()
    columns = view.locator(".columns")
    columns.wait_for()
    return columns


def quarantined(view: Locator) -> Locator:
    """Return the item about quarantined rows, the newest of which are from commit 30."""
    item = view.locator("[data-attention=quarantined]")
    item.get_by_text(re.compile("rows of 2 runs were quarantined, .* elsewhere since")).wait_for()
    return item


def be_quarantined(page: Page, value: str = "9,99") -> None:
    """Have the routes answer with two quarantined rows that broke a rule; its text has a collected value."""
    check = {"state": "warning", "text": f"columns.price.pattern: {value}; expected: a number", "rows": 2}
    facts = {"rows": 2, "run_id": "run 30", "is_whole": False, "replaces": False}
    waiting = {**facts, "checks": [check], "checks_left_out": 3}
    broke = ["columns.price.pattern"] * 2
    sample = {"columns": ["title", value], "rows": [["a", value]] * 2, "broke": broke, "left_out": 0}
    page.route("**/waiting?*", lambda route: route.fulfill(json=waiting))
    page.route("**/rows?*commit=*", lambda route: route.fulfill(json={"collection_task_id": "x", **sample}))


def end_later(series: dict[str, Any]) -> None:
    series["runs"][-1]["ended_at"] = ago()


def be_well(page: Page) -> None:
    """Have the routes answer that nothing needs attention."""
    change_series(page, lambda series: series.update(marks=[], quarantines=[]))
    change(page, "activity", lambda data: data.update(failures=[]))


def fall_silent(page: Page, view: Locator) -> None:
    """Have the service stop answering, and refresh the page."""
    view.locator("[data-sentence=capacity]").wait_for()
    since = ago(seconds=0)  # later than the shown values were read

    def silence(data: dict[str, Any]) -> None:
        for name in ("capacity", "tasks", "days"):
            data[name].update(unanswered_since=since, read_at=ago(seconds=60), value=None)

    change(page, "connections/webcollect_default", silence)
    refresh(view)


@pytest.mark.at_night
class TestDetails:
    """Everything that the page shows, and does when somebody uses it."""

    def test_a_failure_that_has_recovered_is_not_open(self, page: Page, url: str) -> None:
        def recover(data: dict[str, Any]) -> None:
            for failure in data["failures"]:
                failure["recovered_at"] = ago(minutes=1)

        change(page, "activity", recover)
        view = show(page, url)
        view.get_by_role("button", name="0 open failures").wait_for()
        assert view.locator("[data-failure]").count() == 0
        view.get_by_role("button", name="Recovered in the last day").click()
        view.get_by_text("recovered", exact=True).first.wait_for()

    def test_twelve_sources_are_one_line_as_one_source_is(self, view: Locator) -> None:
        assert height(series_of(view, "shops_daily")) == height(series_of(view, "books_daily"))

        series_of(view, "shops_daily").get_by_role("button", name="12 collection tasks").click()
        assert view.locator("[data-source]").count() == 12
        ids = [source.get_attribute("data-source") or "" for source in view.locator("[data-source]").all()]
        assert all(len(id_) == 36 and id_ in view.inner_text() for id_ in ids)
        commits = view.locator("[data-source] [data-head=Commit]").all_inner_texts()
        assert commits == ["30"] * 12

    def test_the_strip_tells_runs_by_their_shapes(self, view: Locator) -> None:
        def runs(dag_id: str, state: str) -> Locator:
            return series_of(view, dag_id).locator(f'[data-run-state="{state}"]')

        assert runs("flights_daily", "failed").count() == 3
        # the total still has all rows that landed before
        assert re.search(r"\t—\s+[\d,]+\s+2 d ago", series_of(view, "flights_daily").inner_text())
        assert runs("hotels_daily", "empty").count() == 1
        assert runs("jobs_daily", "odd").count() == 1
        shapes = {
            state: runs(dag_id, state)
            .first.locator("> :not(.area, title)")
            .evaluate_all("shapes => shapes.map(shape => shape.tagName).join(' ')")
            for dag_id, state in (
                ("flights_daily", "failed"),
                ("jobs_daily", "odd"),
                ("jobs_daily", "landed"),
            )
        }
        assert len(set(shapes.values())) == 3
        # the bar of the first full load is capped, so the others are no flat line
        assert runs("books_daily", "landed").first.get_attribute("data-capped") is not None
        assert height(runs("books_daily", "landed").nth(5).locator("rect").nth(1)) > 5
        rows = series_of(view, "jobs_daily").locator("[data-rows]").inner_text()
        assert re.search(r"^20 usually \d+$", rows)
        # a landing that often has no rows is not marked
        assert series_of(view, "alerts_daily").get_attribute("data-marks") == ""

    def test_a_column_that_has_become_empty_is_seen_at_once(self, view: Locator) -> None:
        columns = columns_of(view, "reviews_daily")
        ended = series_of(view, "reviews_daily").locator("time").first.get_attribute("datetime") or ""
        until = datetime.datetime.fromisoformat(ended) - datetime.timedelta(days=4)
        assert columns.locator("[data-sentence]").inner_text() == (
            f"price was filled in 98 % of the rows until {until.day} {until:%B}, in 0 % since."
        )
        # it is the first column
        assert columns.locator("[data-column]").first.get_attribute("data-column") == "price"
        price = columns.locator('[data-column="price"]')
        # failed checks have a shape of their own
        bars = price.locator("[data-share]")
        has_path = "bars => bars.map(bar => !!bar.querySelector('path'))"
        assert bars.evaluate_all(has_path) == [False] * 26 + [True] * 4
        areas = bars.locator("> rect:not(.area)")
        assert height(areas.first) > 10 > 2 > height(areas.last) > 0

    def test_the_parts_of_a_chart_are_told_by_arrow_keys(self, page: Page, view: Locator) -> None:
        chart = view.locator('[data-chart="rows"]')
        told_by_arrow_keys(page, chart, "Rows per day")
        assert "at most" in chart.locator("figcaption .limits").inner_text()
        # the limit is outside the chart, where it covers no bar
        assert chart.locator("svg text").count() == 0
        told = view.locator('[data-chart="cost"]')
        assert re.search(r": [\d.]+ units of the balance", told.locator(".told").inner_text())
        assert re.search(r"at most [\d,.]+ units of the balance", told.locator(".limits").inner_text())
        columns = columns_of(view, "reviews_daily")
        price = columns.locator('[data-column="price"]')
        told_by_arrow_keys(page, price, "Filled rows of price")
        assert columns.locator("[data-column]").count() == 8
        columns.get_by_role("button", name="3 more columns").press("Enter")
        columns.locator("[data-column]").nth(10).wait_for()
        assert columns.get_by_role("button").count() == 0

    def test_columns_are_read_when_opened_and_with_a_newer_run(self, page: Page, url: str) -> None:
        asked: list[str] = []
        page.on("request", lambda request: asked.extend({request.url} if "/columns?" in request.url else ()))
        fail(page, "**/columns?*", 500, "broken", times=1)
        view = show(page, url)
        series_of(view, "reviews_daily").get_by_role("button").click()
        view.get_by_text("Its columns cannot be read. Airflow does not answer: broken (500)").wait_for()
        assert len(asked) == 1
        refresh(view)
        view.locator("[data-column]").first.wait_for()
        assert len(asked) == 2
        with page.expect_response("**/webcollect/landings"):
            refresh(view)
        change_series(page, end_later)
        with page.expect_response("**/columns?*"):
            refresh(view)
        assert len(asked) == 3
        assert view.locator("[data-column]").count() == 8

    def test_what_is_pressed_while_news_come_is_clicked(self, page: Page, view: Locator) -> None:
        button = series_of(view, "reviews_daily").get_by_role("button")
        button.hover()
        page.mouse.down()
        change_series(page, end_later)
        with page.expect_response("**/webcollect/landings"), page.expect_response("**/webcollect/activity"):
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        # the page has got both answers, and processes them in the browser's next tasks
        page.evaluate("() => new Promise((done) => setTimeout(done, 500))")
        page.mouse.up()
        view.locator("[data-run]").first.wait_for()
        assert button.get_attribute("aria-expanded") == "true"

    def test_a_viewer_gets_the_commands_to_decide(self, page: Page, url: str, airflow: RealAirflow) -> None:
        change_series(page, lambda series: series.update(may_decide=False))
        view = show(page, url)
        item = quarantined(view)
        options = {
            "show": ("cat", "--quarantined 30 --reasons"),
            "accept": ("accept", "--commit 30"),
            "discard": ("discard", "--commit 30"),
        }
        for verb, (command, option) in options.items():
            button = item.get_by_role("button", name=f"{verb}s the rows of commit 30")
            offers = (airflow.home / "offers").as_uri()
            assert copied(page, button) == f"webcollect landing {command} '{offers}' {option}"
        runs = series_of(view, "offers_daily").locator('[data-run-state="quarantined"]')
        assert runs.count() == 2
        assert re.search(r"0 rows, \d+ quarantined", runs.last.locator("title").text_content() or "")
        columns = columns_of(view, "offers_daily")
        columns.get_by_text("No column of what has landed is filled less than before.").wait_for()

    def test_rows_are_decided_on_by_the_keyboard(self, page: Page, url: str, airflow: RealAirflow) -> None:
        asked: list[Any] = []

        def decide(route: Route) -> None:
            asked.append(route.request.post_data_json)
            route.fulfill(json={"rows": 2})

        be_quarantined(page)
        page.route("**/decision?*", decide)
        view = show(page, url)
        item = quarantined(view)
        dialog = view.get_by_role("dialog")
        for key, count in (("Escape", 0), ("Enter", 0)):
            item.get_by_role("button", name="Accept … the rows of commit 30").press("Enter")
            dialog.get_by_text("2 rows of run 30 are quarantined: each broke a rule about values").wait_for()
            # the focused button changes nothing
            page.keyboard.press(key)
            dialog.wait_for(state="hidden")
            assert len(asked) == count
        button = item.get_by_role("button", name="Discard … the rows of commit 30")
        button.press("Enter")
        dialog.get_by_text("and counts them as discarded").wait_for()
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Enter")
        dialog.get_by_role("heading", name="2 rows discarded.").wait_for()
        landing = (airflow.home / "offers").as_uri()
        assert asked == [{"landing": landing, "commit": 30, "decision": "discard"}]
        with page.expect_response("**/webcollect/landings"):
            page.keyboard.press("Enter")

    def test_the_checks_and_rows_that_a_decision_is_about_are_texts(self, page: Page, url: str) -> None:
        be_quarantined(page, MARKUP)
        view = show(page, url)
        quarantined(view).get_by_role("button", name="Accept …").first.click()
        dialog = view.get_by_role("dialog")
        dialog.locator('[data-sample="2"]').wait_for()
        assert dialog.locator("th").all_inner_texts() == ["Broken rules", "title", MARKUP]
        assert dialog.locator("td").all_inner_texts() == ["columns.price.pattern", "a", MARKUP] * 2
        told = dialog.locator("[data-checks]").inner_text()
        assert f"2 rows: columns.price.pattern: {MARKUP}; expected: a number" in told
        assert "3 more checks are not shown" in told
        assert view.locator("img").count() == 0
        # somebody else was faster
        text = "the rows of commit 30 at s3://lake/offers were discarded already by Ann"
        fail(page, "**/decision?*", 409, text)
        dialog.get_by_role("button", name="Accept").click()
        dialog.get_by_text(text).wait_for()
        assert dialog.locator("[data-sample]").count() == 0
        dialog.get_by_role("button", name="Close").click()

    def test_a_landing_out_of_reach_is_told(self, page: Page, view: Locator, airflow: RealAirflow) -> None:
        offers = (airflow.home / "offers").as_uri()
        fail(page, "**/waiting?*", 502, f"{offers} cannot be read")
        quarantined(view).get_by_role("button", name="Accept … the rows of commit 30").click()
        dialog = view.get_by_role("dialog")
        dialog.get_by_role("heading", name="No decision is possible now").wait_for()
        assert f"{offers} cannot be read" in dialog.get_by_role("status").inner_text()
        assert dialog.get_by_text(f"webcollect landing accept '{offers}' --commit 30").is_visible()
        dialog.get_by_role("button", name="Close").click()

    def test_five_rows_and_loads_are_texts(self, page: Page, url: str) -> None:
        sample = {"columns": ["*title", MARKUP], "rows": [[MARKUP, None]] * 5, "broke": [], "left_out": 3}
        load = {"dag_id": "books_daily", "task_id": "load", "run_id": "r", "map_index": -1, "commit": 29}
        done = {
            "table": "shop.books",
            "warehouse_conn_id": "warehouse",
            "rows": 105,
            "ended_at": ago(hours=1),
        }
        apart = {"skipped_rows": 2, "skipped": {"part-1.jsonl": 2}}
        page.route("**/rows?*", lambda route: route.fulfill(json={"collection_task_id": "x", **sample}))
        page.route("**/loads?*", lambda route: route.fulfill(json={"loads": [{**load, **done, **apart}]}))
        view = show(page, url)
        series_of(view, "books_daily").get_by_role("button").click()
        view.locator('[data-sample="5"]').wait_for()
        assert view.locator("[data-sample] th").all_inner_texts() == ["*title", MARKUP]
        assert view.locator("[data-sample] td").all_inner_texts() == [MARKUP, "—"] * 5
        assert view.locator("img").count() == 0
        view.get_by_text("3 more columns are not shown").wait_for()
        row = view.locator('[data-load="shop.books"]').inner_text()
        for text in ("shop.books", "warehouse", "books_daily · load", "105", "60 min ago", "29 of 30"):
            assert text in row
        assert "2 rows without a key: 2 in part-1.jsonl" in row

    def test_inputs_without_a_row_are_texts(self, page: Page, url: str) -> None:

        def with_inputs(route: Route) -> None:
            landings = route.fetch().json()
            for series in landings["series"]:
                if series["dag_id"] == "books_daily":
                    series["sources"][0]["missing_inputs"] = {"inputs": ["tea", MARKUP], "left_out": 5}
            route.fulfill(json=landings)

        page.route("**/webcollect/landings", with_inputs)
        view = show(page, url)
        series_of(view, "books_daily").get_by_role("button").click()
        inputs = view.locator("[data-inputs]")
        assert inputs.locator("p").all_inner_texts() == [
            "7 inputs without a row in the newest run:",
            "5 more inputs are not shown",
        ]
        assert inputs.locator("li").all_inner_texts() == ["tea", MARKUP]
        assert view.locator("img").count() == 0

    def test_the_text_of_an_error_is_no_markup_and_no_command(self, page: Page, url: str) -> None:
        value = "9`webcollect landing accept x;touch owned;`<img src=x onerror=alert(1)>"
        reason = f"1 check failed for task t: 1 of 9 values do not match ({value!r} at offset 0)"
        # failures with the same reason are one entry, and earlier tests may have left others
        entries = {"content": [{"event": reason, "level": "error"}]}
        page.route("**/dags/flights_daily/**/logs/1?*", lambda route: route.fulfill(json=entries))
        view = show(page, url)
        failure = view.locator("[data-failure]").filter(has_text="flights_daily")
        failure.get_by_text(reason, exact=True).wait_for()
        assert failure.locator("img").count() == failure.get_by_role("button").count() == 0
        assert failure.get_by_role("link", name="Open the log").first.is_visible()

    def test_the_lines_that_read_a_landing_are_copied(self, page: Page, view: Locator) -> None:
        series_of(view, "jobs_daily").get_by_role("button").click()
        lines = {
            "the line of Python": 'read_landing("s3://lake/jobs")',
            "the shell command": "webcollect landing sql 's3://lake/jobs' 'select count(*) from landing'",
            "the manifest": "s3://lake/jobs/_manifest.json",
        }
        for name, line in lines.items():
            assert copied(page, view.get_by_role("button", name=f"Copy {name}", exact=True)) == line
        commits = view.locator("[data-run] [data-head=Commit]").all_inner_texts()
        assert commits == [str(number) for number in range(30, 0, -1)]
        newest = view.locator("[data-run]").first
        rows = int(newest.get_attribute("data-rows") or 0)
        told = [newest.locator(f"[data-head={head}]").inner_text() for head in ("New", "Changed", "Gone")]
        assert told == [str(rows // 40), f"{rows // 5:,}", "29"]

    def test_what_would_act_on_a_terminal_cannot_be_copied(self, page: Page, url: str) -> None:
        change_series(
            page,
            lambda series: series.update(
                manifests=[f"{series['destination']}\n touch owned\n/_manifest.json"]
            ),
        )
        view = show(page, url)
        series_of(view, "jobs_daily").get_by_role("button").click()
        view.get_by_role("button", name="Copy the line of Python").wait_for()
        for name in ("Copy the destination", "Copy the manifest", "Copy the shell command"):
            assert view.get_by_role("button", name=name).count() == 0

    def test_waits_tell_how_far_their_collection_tasks_are(self, page: Page, url: str) -> None:
        near = {"since": ago(seconds=191), "timeout_at": ago(hours=-1), "is_near_timeout": True}
        way = "between two queries, without a worker"
        where = {"dag_id": "jobs_daily", "run_id": "some_run", "task_id": "wait", "map_index": -1}
        what = {"operator": "WebCollectTaskSensor", "try_number": 1, "state": "up_for_reschedule", "way": way}
        service = {"webcollect_conn_id": "webcollect_default", "collection_task_ids": [demo.TASK_ID]}
        wait = {**where, **what, **service, **near}
        other = {**wait, "task_id": "tidy", "collection_task_ids": [], "is_near_timeout": False}

        def add_task(data: dict[str, Any]) -> None:
            task: dict[str, Any] = {
                "task": demo.TASK_ID,
                "status": "Extracting",
                "started": "2026-01-02T08:15:00",
            }
            task |= {"rows": 1450, "sub_tasks": 12, "sub_tasks_done": 5}
            data["tasks"].update(value={"left_out": 0, "tasks": [task]}, read_at=ago(seconds=1))
            data["names"] = {}

        change(page, "activity", lambda data: data.update(running=[wait, other]))
        change(page, "connections/webcollect_default", add_task)
        view = show(page, url)
        row = view.locator('[data-task="jobs_daily/some_run/wait/-1"]')
        row.get_by_text("5 of 12").wait_for()
        for text in ("books", "Extracting", "1,450", "3 min"):
            assert text in row.inner_text()
        assert view.locator('[data-task="jobs_daily/some_run/tidy/-1"]').is_visible()
        view.locator('[data-attention="timeout"]').get_by_text("times out").wait_for()
        # of the times in the table, this one has no zone
        view.get_by_role("columnheader", name="Started (service's time)").wait_for()
        view.get_by_role("columnheader", name="Ended", exact=True).last.wait_for()

    def test_a_silent_service_is_told_and_what_is_known_stays(self, page: Page, view: Locator) -> None:
        fall_silent(page, view)
        service = view.locator("[data-section=service]")
        service.get_by_text("The service has not answered since").wait_for()
        view.get_by_role("button", name="service not answering since").wait_for()
        # the values that were shown before are newer, so they stay
        assert service.locator("[data-sentence=capacity]").is_visible()
        # the page soon asks again
        with page.expect_request("**/webcollect/connections/webcollect_default"):
            pass

    def test_what_is_not_shown_of_the_service_is_said(self, page: Page, url: str) -> None:
        route, charts = "connections/webcollect_default", "[data-chart]"
        change(page, route, lambda data: data.update(sees_all=False))
        view = show(page, url)
        view.get_by_text("Only collection tasks of the DAGs that you may read are shown.").wait_for()
        assert view.locator(charts).count() > 0

        none: dict[str, Any] = {"days": [], "thresholds": {}}
        change(page, route, lambda data: data["days"].update(value=none, read_at=ago()))
        refresh(view)
        view.get_by_text("The service shows no run in the last 30 days.").wait_for()
        assert view.locator(charts).count() == 0

    def test_a_day_that_is_not_over_is_not_short_of_rows(self, page: Page, url: str) -> None:
        def be_short(data: dict[str, Any]) -> None:
            days = [{"day": ago(days=days)[:10], "rows": 1, "succeeded": 1, "cost": 1} for days in (1, 0)]
            limits = {"rows_low": 10, "rows_high": 40, "succeeded_low": 0.9, "cost_high": None}
            data["days"].update(value={"days": days, "thresholds": limits}, read_at=ago())

        change(page, "connections/webcollect_default", be_short)
        bars = show(page, url).locator('[data-chart="rows"] [data-day]')
        bars.first.wait_for()
        assert [bar.get_attribute("class") for bar in bars.all()] == ["run odd", "run landed chosen"]

    def test_an_ended_session_is_one_banner_with_a_link(self, page: Page, url: str) -> None:
        view = show(page, url)
        fail(page, "**/webcollect/**", 401, "no")
        refresh(view)
        banner = view.locator("[data-banner]")
        banner.get_by_text("Your session has ended").wait_for()
        assert view.get_by_text("session").count() == 1
        link = banner.get_by_role("link", name="Sign in again").get_attribute("href") or ""
        assert urlsplit(link).path == urlsplit(f"{url}/api/v2/auth/login").path
        assert parse_qs(urlsplit(link).query)["next"] == [urlsplit(f"{url}{PAGE}").path]

    def test_names_that_come_with_landings_are_shown(self, page: Page, url: str) -> None:
        def name_all(data: dict[str, Any]) -> None:
            ids = {source["collection_task_id"] for series in data["series"] for source in series["sources"]}
            data["names"] = dict.fromkeys(ids, "Prices of shops")

        change(page, "landings", name_all)
        change(page, "connections/webcollect_default", lambda data: data.update(names={}))
        view = show(page, url)
        assert "Prices of shops" in series_of(view, "jobs_daily").inner_text()

    def test_a_search_finds_names_and_asks_for_what_is_left_out(self, page: Page, url: str) -> None:
        change(page, "landings", lambda data: data.update(left_out=5))
        view = show(page, url)
        view.get_by_text("5 more landings are not shown: a search finds them.").wait_for()
        with page.expect_request(re.compile(r"/webcollect/landings\?search=jobs")):
            view.get_by_role("searchbox").fill("jobs")
        assert marks(view) == ["odd"]
        assert view.get_by_text("The last 30 days").count() == 0

    def test_what_was_opened_and_focused_stays_after_a_refresh(self, page: Page, view: Locator) -> None:
        button = series_of(view, "jobs_daily").get_by_role("button")
        button.focus()
        page.keyboard.press("Enter")
        view.locator("[data-run]").first.wait_for()

        change_series(page, lambda series: series["runs"][-1].update(rows=21))
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        series_of(view, "jobs_daily").locator('[data-rows="21"]').wait_for()
        assert view.locator("[data-run]").count() == 30
        focused = page.evaluate("document.activeElement.closest('[data-series]')?.dataset.series ?? ''")
        assert focused.startswith("jobs_daily/")

    def test_nothing_yet_is_two_steps_with_links(self, page: Page, url: str) -> None:
        counts = {"landings": 0, "failed": 0, "checks": 0, "late": 0, "odd": 0, "empty": 0}
        change(page, "landings", lambda data: data.update(series=[], left_out=0, counts=counts))
        change(page, "activity", lambda data: data.update(running=[], failures=[]))
        view = show(page, url)
        view.get_by_text("Land rows").wait_for()
        assert view.locator("ol > li").count() == 2
        view.get_by_role("link", name="Airflow's connections").click()
        page.get_by_role("button", name="Add Connection").wait_for()

    def test_all_is_well_is_said_with_what_was_checked(self, page: Page, url: str) -> None:
        be_well(page)
        view = show(page, url)
        well = "All is well: no failure of the last seven days is open, no landing is late"
        view.get_by_text(well).wait_for()
        fall_silent(page, view)
        view.get_by_text("As far as this page can tell: no failure").wait_for()

    def test_all_is_well_is_not_said_of_what_could_not_be_checked(self, page: Page, url: str) -> None:
        be_well(page)
        fail(page, "**/webcollect/activity", 500, "broken")
        view = show(page, url)
        view.get_by_text("Airflow does not answer: broken (500)").wait_for()
        assert view.get_by_text("All is well").count() == 0

    def test_no_page_scrolls_sideways_and_a_narrow_one_has_cards(self, page: Page, view: Locator) -> None:
        for width in (1000, 800, 600, 400):
            page.set_viewport_size({"width": width, "height": 900})
            assert view.evaluate("page => page.scrollWidth <= page.clientWidth"), width
        series_of(view, "shops_daily").get_by_role("button").click()
        view.locator("[data-source]").first.wait_for()
        assert view.evaluate("page => page.scrollWidth <= page.clientWidth")
        cells = series_of(view, "jobs_daily").locator("td")
        tops = [(cells.nth(index).bounding_box() or {"y": 0.0})["y"] for index in range(cells.count())]
        assert len(set(tops)) > 3

    @pytest.mark.skipif(not AXE.is_file(), reason="axe is not installed")
    @pytest.mark.parametrize(
        ("theme", "rules"),
        # the themes differ only in their colours
        [("light", {}), ("dark", {"runOnly": {"type": "rule", "values": ["color-contrast"]}})],
        ids=["light", "dark"],
    )
    def test_everybody_can_use_it(self, new_page: Page, url: str, theme: str, rules: dict[str, Any]) -> None:
        new_page.add_init_script(f"localStorage.setItem('theme', '{theme}')")
        sample = {"collection_task_id": "x", "columns": ["a"], "rows": [["b"]], "broke": [], "left_out": 0}
        new_page.route("**/rows?*", lambda route: route.fulfill(json=sample))
        view = show(new_page, url)
        for dag_id in ("shops_daily", "reviews_daily"):
            series_of(view, dag_id).get_by_role("button").click()
        view.locator("[data-source]").first.wait_for()
        view.locator("[data-column]").nth(8).wait_for()
        view.locator("[data-chart]").first.wait_for()
        new_page.add_script_tag(path=AXE)
        options = {"resultTypes": ["violations"], **rules}

        def faults(part: str) -> list[Any]:
            result = new_page.evaluate("([part, options]) => axe.run(part, options)", [part, options])
            grave = [fault for fault in result["violations"] if fault["impact"] in ("serious", "critical")]
            return [(fault["id"], fault["nodes"][0]["html"]) for fault in grave]

        assert faults("webcollect-page") == []
        be_quarantined(new_page)
        quarantined(view).get_by_role("button", name="Discard …").first.click()
        view.get_by_role("dialog").get_by_text("and counts them as discarded").wait_for()
        assert faults("webcollect-page dialog") == []

    def test_the_dashboard_alone_has_a_line_that_asks_once(self, new_page: Page, url: str) -> None:
        asked: list[str] = []
        new_page.on("request", lambda request: asked.append(urlsplit(request.url).path))
        new_page.goto(f"{url}/dags")
        new_page.get_by_role("link", name="webcollect_collect_and_land").first.wait_for()
        assert [path for path in asked if "/webcollect/" in path] == []

        new_page.goto(url)
        tile = new_page.locator("webcollect-tile")
        tile.get_by_text(re.compile(r"\d+ landings · 1 failed · 2 failed checks · 3 late")).wait_for()
        # the dashboard itself sends requests every few seconds
        new_page.wait_for_timeout(4_000)
        data = [path for path in asked if "/webcollect/" in path and "/static/" not in path]
        base = urlsplit(url).path
        assert sorted(data) == [f"{base}/webcollect/activity", f"{base}/webcollect/landings"]
        tile.get_by_role("link", name="Web collection").click()
        new_page.locator("webcollect-page").wait_for()

    def test_the_dashboard_has_no_line_for_who_may_not_read_it(self, new_page: Page, url: str) -> None:
        for name in ("landings", "activity"):
            fail(new_page, f"**/webcollect/{name}", 403, "no")
        with new_page.expect_response("**/webcollect/activity"):
            new_page.goto(url)
        new_page.wait_for_timeout(500)
        assert new_page.locator("webcollect-tile").is_hidden()


def test_a_decision_on_quarantined_rows_is_committed(view: Locator) -> None:
    # the last test of the file: the earlier tests need the quarantined rows of two runs
    for verb, commit in (("Accept", 29), ("Discard", 30)):
        view.get_by_role("button", name=f"{verb} … the rows of commit {commit}").click()
        dialog = view.get_by_role("dialog")
        dialog.locator('[data-sample="5"]').wait_for()
        dialog.get_by_text("columns.price.filled").first.wait_for()
        dialog.get_by_role("button", name=verb).click()
        dialog.get_by_role("heading", name=re.compile(rf"^\d+ rows {verb.lower()}ed\.$")).wait_for()
        dialog.get_by_role("button", name="Close").click()
