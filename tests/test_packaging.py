"""What the distribution promises: one version, entry points, plain pins, a wheel with the package alone."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from importlib.metadata import PathDistribution, distribution, metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

import hatchling.build
import jsonschema
import pytest
import yaml
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_1_PLUS
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from readme_renderer import markdown

import airflow_provider_webcollect
from airflow_provider_webcollect.cli import run
from airflow_provider_webcollect.get_provider_info import get_provider_info
from airflow_provider_webcollect.ui import PREFIX, WebCollectPlugin
from tests.check_release import missing

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "airflow_provider_webcollect"
DISTRIBUTION = "airflow-provider-webcollect"
CONSTRAINTS = sorted((ROOT / "constraints").glob("*.txt"))
AIRFLOW_CONSTRAINTS = [path for path in CONSTRAINTS if path.name.startswith("airflow-")]
PIN = re.compile(r"(?P<name>[a-z0-9-]+)==[0-9][\w.!+]*( ; .+)?")

README = (ROOT / "README.md").read_text()
REPOSITORY = "https://forge.example.com/us/provider"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins(constraints: Path) -> list[str]:
    return [line for line in constraints.read_text().splitlines() if not line.startswith("#")]


def test_the_version_has_one_source(project: dict[str, Any]) -> None:
    assert "version" not in project["project"]
    assert metadata(DISTRIBUTION)["Version"] == airflow_provider_webcollect.__version__


def test_the_entry_points_are_provider_page_and_command_line() -> None:
    ours = [entry for entry in distribution(DISTRIBUTION).entry_points if entry.value.startswith(PACKAGE)]
    assert {entry.group: entry.load() for entry in ours} == {
        "airflow.plugins": WebCollectPlugin,
        "apache_airflow_provider": get_provider_info,
        "console_scripts": run,
    }


def test_provider_info_fits_the_schema_of_airflow() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_provider_info_has_guides_and_a_logo_that_are_there() -> None:
    (integration,) = get_provider_info()["integrations"]
    guides = {transfer["how-to-guide"] for transfer in get_provider_info()["transfers"]}
    assert guides < {*integration["how-to-guide"]}
    assert [guide for guide in integration["how-to-guide"] if not Path(f"{ROOT}{guide}").exists()] == []
    if AIRFLOW_V_3_1_PLUS:
        assert integration["logo"].startswith(f"{PREFIX}/static/")
        assert WebCollectPlugin.react_apps[0]["icon"].endswith(integration["logo"])
        assert Path(f"{ROOT}/{PACKAGE}/ui/static", Path(integration["logo"]).name).exists()


@pytest.mark.parametrize("urls", [{}, {"Documentation": "https://docs.example.com/us"}], ids=["none", "one"])
def test_provider_info_has_the_documentation_that_a_wheel_names(
    built: Callable[..., PathDistribution], urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    built("# Readme", {"Repository": REPOSITORY, **urls} if urls else {})
    monkeypatch.syspath_prepend(Path.cwd())
    (integration,) = get_provider_info()["integrations"]
    assert integration.get("external-doc-url") == urls.get("Documentation")


def test_every_python_of_the_metadata_is_in_the_matrix(project: dict[str, Any]) -> None:
    classifiers = project["project"]["classifiers"]
    named = re.findall(r"Python :: (3\.\d+)$", "\n".join(classifiers), re.MULTILINE)
    (pythons,) = re.findall(r"^MATRIX_PYTHONS \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert pythons.split() == [f"python{version}" for version in named]
    nightly = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    assert nightly["jobs"]["test-matrix"]["strategy"]["matrix"]["python"] == named


@pytest.mark.parametrize("constraints", CONSTRAINTS, ids=lambda path: path.name)
def test_constraints_are_plain_pins_in_order(constraints: Path) -> None:
    lines = pins(constraints)
    names = [match["name"] if (match := PIN.fullmatch(line)) else line for line in lines]
    assert [line for line in lines if not PIN.fullmatch(line)] == []
    assert names
    assert names == sorted(names)


@pytest.mark.parametrize("constraints", AIRFLOW_CONSTRAINTS, ids=lambda path: path.name)
def test_all_that_make_installs_is_pinned(project: dict[str, Any], constraints: Path) -> None:
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    wanted = [*project["project"]["dependencies"]]
    wanted += [entry for name in ("sandbox", "parquet", "patterns", "s3") for entry in extras[name]]
    # the scenarios on a distributed Airflow run on the newest version only
    used = [group for name, group in groups.items() if name != "system" or "3.3" in constraints.name]
    wanted += [entry for group in used for entry in group if isinstance(entry, str)]
    names = {canonicalize_name(Requirement(line).name) for line in pins(constraints)}
    assert {canonicalize_name(Requirement(entry).name) for entry in wanted} <= names


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PathDistribution]:
    """Builds the metadata of a wheel with a README and project URLs, in the working directory."""

    def built(readme: str, urls: dict[str, str]) -> PathDistribution:
        (tmp_path / PACKAGE).mkdir()
        for name in ("LICENSE", "hatch_build.py", f"{PACKAGE}/__init__.py"):
            shutil.copy(ROOT / name, tmp_path / name)
        (tmp_path / "README.md").write_text(readme)
        # without the project's own URLs
        text = re.sub(r"^\[project\.urls\]\n(.+\n)*", "", (ROOT / "pyproject.toml").read_text(), flags=re.M)
        lines = [f'{name} = "{url}"' for name, url in urls.items()]
        (tmp_path / "pyproject.toml").write_text("\n".join([text, "[project.urls]", *lines]))
        monkeypatch.chdir(tmp_path)
        return PathDistribution(tmp_path / hatchling.build.prepare_metadata_for_build_wheel(str(tmp_path)))

    return built


@pytest.fixture
def describe(built: Callable[..., PathDistribution]) -> Callable[..., str]:
    """Returns the long description made from a README, as a package index renders it."""

    def describe(readme: str, repository: str | None) -> str:
        urls = {"Repository": repository} if repository else {}
        html = markdown.render(str(built(readme, urls).metadata.json["description"]))
        assert html
        return html

    return describe


def links(html: str) -> list[str]:
    return re.findall(r'(?:href|src)="([^"]*)"', html)


def test_without_a_repository_the_long_description_has_no_links(describe: Callable[..., str]) -> None:
    html = describe(f"{README}\n\n[`a`](docs/a.md)\n\n![b](docs/b.png)\n\nc", None)
    assert [link for link in links(html) if not re.match(r"https?://|#", link)] == []
    assert re.findall(r"<p>(.*)</p>", html)[-2:] == ["<code>a</code>", "c"]


def test_long_description_links_lead_to_this_version(describe: Callable[..., str]) -> None:
    urls = links(describe(README, REPOSITORY))
    pages = f"{REPOSITORY}/blob/v{airflow_provider_webcollect.__version__}/"
    ours = [link.removeprefix(pages) for link in urls if link.startswith(pages)]
    assert ours
    assert [name for name in ours if not (ROOT / name.partition("#")[0]).exists()] == []
    assert [link for link in urls if not re.match(r"https?://|#", link)] == []


def test_the_long_description_keeps_other_links_and_pictures(describe: Callable[..., str]) -> None:
    readme = """
`[not](a.md)` [`a`](docs/a.md#part) [b](https://example.com/b) [c](#part) ![d](docs/d.png)

```python
row["e"](f.md)
```
"""
    tag = f"v{airflow_provider_webcollect.__version__}"
    assert links(describe(readme, f"{REPOSITORY}/")) == [
        f"{REPOSITORY}/blob/{tag}/docs/a.md#part",
        "https://example.com/b",
        "#user-content-part",  # the renderer adds the prefix to anchors
        f"{REPOSITORY}/raw/{tag}/docs/d.png",
    ]


def test_the_wheel_holds_the_package_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with zipfile.ZipFile(tmp_path / hatchling.build.build_wheel(str(tmp_path))) as wheel:
        names = wheel.namelist()
    dist_info = f"{PACKAGE}-{airflow_provider_webcollect.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {PACKAGE, dist_info}
    assert {
        f"{PACKAGE}/__init__.pyi",
        f"{PACKAGE}/collection_tasks.schema.json",
        f"{PACKAGE}/py.typed",
        f"{PACKAGE}/sandbox/openapi.yaml",
        f"{dist_info}/licenses/LICENSE",
    } <= {*names}
    assert [name for name in names if name.endswith(".pyc")] == []


@pytest.mark.at_night
def test_the_source_distribution_can_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with tarfile.open(tmp_path / hatchling.build.build_sdist(str(tmp_path))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = [
        *("LICENSE", "Makefile", "README.md", "SECURITY.md", "benchmarks/waiting.py"),
        *("constraints/airflow-3.3.txt", "demo/__main__.py", "hatch_build.py"),
        "pyproject.toml",
    ]
    assert {*needed, "tests/test_packaging.py", f"{PACKAGE}/__init__.py"} <= names
    assert [name for name in names if name.startswith(".") and name != ".gitignore"] == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that ``check_release`` reads, ready for the release of 1.0.0."""
    (tmp_path / PACKAGE).mkdir()
    (tmp_path / PACKAGE / "__init__.py").write_text('__version__ = "1.0.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.0.0 (2026-12-01)\n")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nclassifiers = ["Development Status :: 5 - Production/Stable"]\n'
        f'[project.urls]\nRepository = "{REPOSITORY}"\n'
    )
    return tmp_path


def test_a_ready_tree_is_released_under_its_own_tag_alone(tree: Path) -> None:
    assert missing(tree, "v1.0.0") == []
    (said,) = missing(tree, "v1.0.1")
    assert "must be v1.0.0" in said


@pytest.mark.parametrize(
    ("file", "there", "instead", "lacks"),
    [
        ("CHANGELOG.md", "2026-12-01", "unreleased", "## 1.0.0 (YYYY-MM-DD)"),
        ("pyproject.toml", "5 - Production/Stable", "4 - Beta", "5 - Production/Stable"),
        ("pyproject.toml", "Repository", "Home", "[project.urls]"),
    ],
)
def test_what_a_release_lacks_is_said(tree: Path, file: str, there: str, instead: str, lacks: str) -> None:
    path = tree / file
    path.write_text(path.read_text().replace(there, instead))
    (said,) = missing(tree, "v1.0.0")
    assert lacks in said


def test_workflows_run_make_targets_and_pin_actions_by_digest() -> None:
    for workflow in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        jobs = yaml.safe_load(workflow.read_text())["jobs"]
        for called in [job["uses"] for job in jobs.values() if "uses" in job]:
            assert (ROOT / called).is_file(), workflow
        for step in [step for job in jobs.values() for step in job.get("steps", [])]:
            if "uses" in step:
                assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), workflow
            else:
                assert step["run"].startswith("make "), workflow


def test_each_change_is_tested_on_two_pythons_with_caches(
    project: dict[str, Any],
) -> None:
    workflows = ROOT / ".github" / "workflows"
    made = {name: yaml.safe_load((workflows / f"{name}.yml").read_text()) for name in ("ci", "nightly")}
    matrix = made["ci"]["jobs"]["make"]["strategy"]["matrix"]
    assert f">={matrix['python'][0]}" == project["project"]["requires-python"]
    assert {*matrix["target"]} >= {"test", "test-2.11"}
    assert {"target": "test", "python": "3.13"} in matrix["include"]
    for workflow in made.values():
        (kept,) = [step for step in workflow["jobs"]["make"]["steps"] if "cache@" in step.get("uses", "")]
        assert re.search(r"matrix\.python.*hashFiles\('constraints/\*\*'", kept["with"]["key"])
    # a release uses nothing that another run has cached
    assert "cache" not in (workflows / "release.yml").read_text()


def test_hooks_before_a_commit_run_what_make_lint_runs() -> None:
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    revs = {repo["repo"].rpartition("/")[2]: repo["rev"] for repo in repositories if "rev" in repo}
    lines = pins(ROOT / "constraints" / "airflow-3.3.txt")
    pinned = dict(line.split("==") for line in lines if ";" not in line)
    assert revs == {"ruff-pre-commit": f"v{pinned['ruff']}", "codespell": f"v{pinned['codespell']}"}
    hooks = {hook["id"] for repo in repositories for hook in repo["hooks"]}
    (recipe,) = re.findall(r"^lint: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = re.findall(r"\.venv/bin/([\w-]+(?: \w+)?)", recipe)
    assert hooks == {command.replace(" ", "-") for command in commands}


def test_a_release_is_attested_by_a_job_without_our_code() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert "attest" in jobs["publish"]["needs"]
    assert jobs["attest"]["permissions"] == {"attestations": "write", "id-token": "write"}
    assert [step for step in jobs["attest"]["steps"] if "uses" not in step] == []
    uploaded = [step["with"]["name"] for step in jobs["publish"]["steps"] if "with" in step]
    assert uploaded == ["dist"]
    attested = [step["with"] for step in jobs["attest"]["steps"] if "actions/attest@" in step["uses"]]
    assert [entry["subject-path"] for entry in attested] == ["dist/*", "dist/*"]
    name = Path(attested[1]["sbom-path"]).name
    assert f"build/sbom/{name}" in (ROOT / "Makefile").read_text()
