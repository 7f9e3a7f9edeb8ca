"""Options: one schema, one order of sources, and messages that help to fix the mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from ast import literal_eval
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hub.config import settings
from hub.config.forms import COMMAND_LINE, KEYS, MOVED, OPTIONS, PATHS, parse_text, variable_of, wrong_value
from hub.config.options import Options, check_backends, resolve
from hub.config.tables import CacheSettings, WorkerSettings
from hub.errors import OptionError


def resolved(
    given: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, cwd: Path = Path("/")
) -> Options:
    return resolve(given, environ or {}, cwd, home=Path("/nobody"))


def message_of(
    given: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, cwd: Path = Path("/")
) -> str:
    with pytest.raises(OptionError) as caught:
        resolved(given, environ, cwd)
    return str(caught.value)


def repository(folder: Path, text: str) -> Path:
    """Make a repository with a hub.toml, and return a folder deep inside it."""
    (folder / ".git").mkdir()
    (folder / "hub.toml").write_text(text)
    (folder / "src" / "deep").mkdir(parents=True)
    return folder / "src" / "deep"


def test_nothing_given_means_the_documented_defaults() -> None:
    """Without any setting, every backend may bid, planning measures for at most 20 s, and failures fall back."""
    options = resolved()
    assert options == Options()
    assert (options.backends, options.exclude, options.force, options.tune, options.budget_s) == (
        None,
        (),
        {},
        "fast",
        20.0,
    )
    assert not options.strict
    assert options.origin("threads") == "default"


def test_the_schema_and_the_written_forms_name_the_same_settings() -> None:
    """Every setting of the schema can be written in each of the three sources."""
    assert set(OPTIONS) == set(Options.model_fields) - {"origins", "own", "workers", "cache"}
    tables = {"workers": WorkerSettings, "cache": CacheSettings}
    in_tables = {f"{table}.{name}" for table, kind in tables.items() for name in kind.model_fields}
    assert set(KEYS) == {*OPTIONS, *in_tables}


def test_every_setting_is_documented() -> None:
    """The reference of options has a row for each; a table's setting is there by name and variable."""
    page = (Path(__file__).parent.parent / "docs" / "reference" / "options.md").read_text(encoding="utf-8")
    rows = [f"| `{key}` |" for key in OPTIONS]
    rows += [f"| `{key.partition('.')[2]}` | `{variable_of(key)}` |" for key in set(KEYS) - set(OPTIONS)]
    assert [row for row in rows if row not in page] == []


def test_precedence_is_call_then_environment_then_file_then_default(tmp_path: Path) -> None:
    """Each setting is taken from the first source that gives it, and remembers that source."""
    deep = repository(tmp_path, 'threads = 1\naccuracy = 0.5\ntune = "full"\n')
    options = resolved({"threads": 3}, {"HUB_THREADS": "2", "HUB_ACCURACY": "0.25"}, deep)
    assert (options.threads, options.accuracy, options.tune, options.strict) == (3, 0.25, "full", False)
    origins = [options.origin(key) for key in ("threads", "accuracy", "tune", "strict")]
    assert origins == ["options=", "HUB_ACCURACY", str(tmp_path / "hub.toml"), "default"]


def test_the_nearest_file_wins_and_the_search_ends_at_the_repository(tmp_path: Path) -> None:
    """A hub.toml above the repository root is not read."""
    (tmp_path / "hub.toml").write_text("threads = 9\n")
    inner = tmp_path / "project"
    inner.mkdir()
    deep = repository(inner, "threads = 1\n")
    assert resolved(cwd=deep).threads == 1
    (inner / "hub.toml").unlink()
    assert resolved(cwd=deep).threads is None


def test_the_search_ends_at_the_home_folder(tmp_path: Path) -> None:
    """A hub.toml in the home folder counts, one above it does not."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "hub.toml").write_text("threads = 9\n")
    assert resolve(None, {}, home, home=home).threads is None
    (home / "hub.toml").write_text("threads = 4\n")
    assert resolve(None, {}, home, home=home).threads == 4


@pytest.mark.parametrize(
    ("mode", "owner", "reason"),
    [
        (0o644, 4711, "it belongs to another user"),
        (0o646, None, "others may write to it"),
        (0o644, None, ""),
        (0o644, 0, ""),
    ],
)
def test_a_file_above_the_working_directory_must_be_trusted(
    mode: int, owner: int | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another user could have written in a folder above is skipped, with one warning; the superuser is trusted."""
    file = tmp_path / "hub.toml"
    file.write_text("threads = 7\n")
    file.chmod(mode)
    (below := tmp_path / "below").mkdir()
    if owner is not None:
        if os.getuid() != 0:
            pytest.skip("only the superuser can give a file away")
        os.chown(file, owner, -1)
    if owner == 0:
        monkeypatch.setattr("hub.config.trust.os.getuid", lambda: 4711)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [resolve(None, {}, below, home=tmp_path).threads for _ in range(2)]
    assert found == [None if reason else 7] * 2
    assert [str(item.message).partition("\n")[0] for item in caught] == (
        [f"{file} is not used: {reason}"] if reason else []
    )
    assert resolve(None, {}, tmp_path, home=tmp_path).threads == 7, "the working directory was chosen by who started this"


def test_every_setting_can_be_an_environment_variable() -> None:
    """Lists are separated by commas, mappings by '=', booleans are 1 or 0 or a word for it."""
    options = resolved(
        environ={
            "HUB_BACKENDS": "onnxruntime, openvino",
            "HUB_EXCLUDE": "inductor",
            "HUB_FORCE": "aten.softmax=eager,aten.gelu.default=openvino",
            "HUB_THREADS": "2",
            "HUB_ACCURACY": "1e-2",
            "HUB_STRICT": "1",
            "HUB_RENEW": "yes",
            "HUB_SHADOW": "0.01",
            "HUB_TUNE": "full",
            "HUB_BUDGET_S": "7.5",
            "HUB_CACHE_DIR": "/tmp/c",
            "HUB_CACHE_GB": "2.5",
            "HUB_WORKERS_COUNT": "3",
            "HUB_WORKERS_COMPILE_LIMIT_S": "2m",
            "HUB_WORKERS_MEMORY_LIMIT_GB": "4",
            "HUB_WORKERS_OUTPUT_LIMIT_MB": "50",
            "HUB_DEBUG_DIR": "debug",
            "HUB_PLAN": "plan.json",
        },
        cwd=Path("/somewhere"),
    )
    assert options.backends == ("onnxruntime", "openvino")
    assert options.exclude == ("inductor",)
    assert options.force == {"aten.softmax": "eager", "aten.gelu.default": "openvino"}
    assert (options.threads, options.accuracy, options.strict, options.tune) == (2, 0.01, True, "full")
    assert (options.renew, options.plan) == (True, Path("/somewhere/plan.json"))
    assert options.shadow == 0.01
    assert (options.budget_s, options.debug_dir) == (7.5, Path("/somewhere/debug"))
    assert options.cache == CacheSettings(dir=Path("/tmp/c"), gb=2.5)
    assert options.workers == WorkerSettings(count=3, compile_limit_s=120.0, memory_limit_gb=4.0, output_limit_mb=50.0)


def test_an_empty_variable_counts_as_unset() -> None:
    """`HUB_THREADS=` in a shell switches the setting off again."""
    assert resolved(environ={"HUB_THREADS": ""}) == Options()


def test_variables_of_plugins_are_left_to_the_plugins() -> None:
    """`HUB_<PLUGIN>_...` belongs to that plugin."""
    found = resolved(environ={"HUB_ONNXRUNTIME_LOG": "3", "HUB_MDLA_DEVICE": "sim", "HUB_DISC_DUMP": "1"})
    assert found.own == {"disc": {"dump": "1"}, "mdla": {"device": "sim"}, "onnxruntime": {"log": "3"}}
    assert found.model_copy(update={"own": {}}).to_json() == Options().to_json()


def test_a_relative_folder_in_a_file_starts_at_the_file(tmp_path: Path) -> None:
    """The cache of a project does not move with the working directory."""
    deep = repository(tmp_path, '[cache]\ndir = "cache"\n')
    assert resolved(cwd=deep).cache.dir == tmp_path / "cache"


def test_without_a_folder_the_cache_lies_where_the_platform_keeps_caches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The cache's root follows XDG_CACHE_HOME, and a folder that is set overrides it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tmp_path in Options().cache.root.parents
    assert CacheSettings(dir=Path("/c")).root == Path("/c")


def test_tables_of_a_file_hold_for_all_models(tmp_path: Path) -> None:
    """`[workers]` and `[cache]` are settings of the machine; a variable overrides each by itself."""
    deep = repository(tmp_path, "threads = 1\n[workers]\ncount = 2\ncompile_limit_s = 90\n[cache]\ngb = 3\n")
    options = resolved({"threads": 4}, {"HUB_WORKERS_COUNT": "5"}, deep)
    assert options.workers == WorkerSettings(count=5, compile_limit_s=90.0)
    assert options.cache == CacheSettings(gb=3.0)
    origins = [options.origin(key) for key in ("workers.count", "workers.compile_limit_s", "cache.gb", "cache.dir")]
    assert origins == ["HUB_WORKERS_COUNT", str(tmp_path / "hub.toml"), str(tmp_path / "hub.toml"), "default"]
    assert options.own == {}


def test_flags_of_commands_override_every_other_source(tmp_path: Path) -> None:
    """A command that works on one cache folder takes it as text, and a relative one starts at the working directory."""
    (tmp_path / "hub.toml").write_text('[cache]\ndir = "/file"\ngb = 3\n')
    environ = {"HUB_CACHE_DIR": "/variable"}
    given: dict[str, str | None] = {"cache.dir": "mine", "cache.gb": None}
    options = resolve(None, environ, tmp_path, origin="the command line", home=tmp_path, flags=given)
    assert options.cache == CacheSettings(dir=tmp_path / "mine", gb=3.0)
    for key, text in (("cache.dir", ""), ("cache.gb", "-1"), ("cache.gb", "much")):
        with pytest.raises(OptionError, match=f"option '{key}' .from the command line. must be"):
            resolve(None, {}, tmp_path, origin="the command line", flags={key: text})


PLACES = {
    "compile_workers": "`count` in [workers] of hub.toml, or HUB_WORKERS_COUNT",
    "compile_limit_s": "`compile_limit_s` in [workers] of hub.toml, or HUB_WORKERS_COMPILE_LIMIT_S",
    "memory_limit_gb": "`memory_limit_gb` in [workers] of hub.toml, or HUB_WORKERS_MEMORY_LIMIT_GB",
    "output_limit_mb": "`output_limit_mb` in [workers] of hub.toml, or HUB_WORKERS_OUTPUT_LIMIT_MB",
    "cache_dir": "`dir` in [cache] of hub.toml, or HUB_CACHE_DIR",
    "cache_gb": "`gb` in [cache] of hub.toml, or HUB_CACHE_GB",
}


@pytest.mark.parametrize("former", MOVED)
def test_a_former_option_names_its_new_place(former: str, tmp_path: Path) -> None:
    """In a call, at the top of a hub.toml, and in the environment, if its variable has another name now."""
    moved = f"{former!r} is now {PLACES[former]}"
    assert f"options=: {moved}" in message_of({former: 1})
    assert f"{tmp_path / 'hub.toml'}: {moved}" in message_of(cwd=repository(tmp_path, f"{former} = 1\n"))
    variable = f"HUB_{former.upper()}"
    if variable not in PLACES[former]:
        assert f"{variable}: {moved}" in message_of(environ={variable: "1"})


@pytest.mark.parametrize("given", [{"cache": {"dir": "c"}}, {"cache.dir": "c"}, {"workers": {"count": 1}}])
def test_a_model_cannot_have_settings_that_hold_for_all(given: Mapping[str, Any]) -> None:
    """The message says where they are set."""
    text = message_of(given)
    assert f"options=: {next(iter(given))!r} is set for all models at once" in text
    assert "in [workers] of hub.toml, or HUB_WORKERS_COUNT" in text or "in [cache] of hub.toml, or HUB_CACHE_DIR" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cache]\ndirectory = '/c'\n", "unknown option 'cache.directory' (from FILE); did you mean 'cache.dir'?"),
        ("cache = '/c'\n", "option 'cache' (from FILE) must be a table, got '/c'"),
        ("[workers]\ncount = -1\n", "option 'workers.count' (from FILE) must be a whole number, 0 for one a core, got -1"),
        (
            "[workers]\ncompile_limit_s = '90s'\n",
            "option 'workers.compile_limit_s' (from FILE) must be a number of seconds",
        ),
    ],
)
def test_a_mistake_in_a_table_names_the_file_and_the_key(text: str, message: str, tmp_path: Path) -> None:
    """As for any other key of a hub.toml."""
    deep = repository(tmp_path, text)
    assert message.replace("FILE", str(tmp_path / "hub.toml")) in message_of(cwd=deep)


def test_a_misspelt_variable_of_a_table_names_the_nearest_one() -> None:
    """It belongs to no plugin."""
    text = message_of(environ={"HUB_WORKERS_CUONT": "1"})
    assert "unknown environment variable 'HUB_WORKERS_CUONT'; did you mean 'HUB_WORKERS_COUNT'?" in text


def test_a_form_of_progress_that_there_is_not_is_a_mistake() -> None:
    """`HUB_PROGRESS` is read where progress is shown, which raises nothing: so it is examined with the options."""
    message = message_of(environ={"HUB_PROGRESS": "0"})
    assert message.splitlines() == ["HUB_PROGRESS is '0'", "  hint: the words are live, plain, off"]
    for form in ("", "off", " Live "):
        assert resolve(None, {"HUB_PROGRESS": form}, Path("/")).threads is None


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    """Some editors begin a text file with one."""
    deep = repository(tmp_path, "\ufeffthreads = 3\n")
    assert resolve(None, {}, deep).threads == 3


def test_the_budget_follows_the_tuning_effort() -> None:
    """Full tuning may take 600 s unless a budget is given."""
    assert resolved({"tune": "full"}).budget_s == 600.0
    assert resolved({"tune": "full", "budget_s": 5}).budget_s == 5.0


def test_a_forced_overload_beats_its_operator() -> None:
    """`force` is looked up by overload first, then by operator."""
    options = resolved({"force": {"aten.softmax": "eager", "aten.softmax.int": "openvino"}})
    assert options.forced("aten.softmax.int") == "openvino"
    assert options.forced("aten.softmax.default") == "eager"
    assert options.forced("aten.gelu.default") is None


def test_only_named_backends_may_bid_and_eager_always_may() -> None:
    """`backends` names who may bid, `exclude` who may not."""
    assert [resolved({"backends": ["a"]}).allows(name) for name in ("a", "b", "eager")] == [True, False, True]
    assert [resolved({"exclude": ("a",)}).allows(name) for name in ("a", "b", "eager")] == [False, True, True]


def test_an_unknown_option_names_the_nearest_one() -> None:
    """A misspelt key says where it came from and what was meant."""
    text = message_of({"thread": 2})
    assert "unknown option 'thread' (from options=); did you mean 'threads'?" in text


def test_an_unknown_variable_names_the_nearest_one() -> None:
    """A misspelt variable is reported."""
    assert "unknown environment variable 'HUB_BACKEND'; did you mean 'HUB_BACKENDS'?" in message_of(
        environ={"HUB_BACKEND": "a"}
    )


def test_variables_of_other_programs_are_ignored_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is near the name of an option is a mistake; addresses that Kubernetes sets are not even mentioned."""
    monkeypatch.setattr(settings, "_warned", set())
    kubernetes = {"HUB_SERVICE_HOST": "10.0.0.1", "HUB_SERVICE_PORT_HTTP": "80", "HUB_PORT_8081_TCP_ADDR": "10.0.0.1"}
    kubernetes["HUB_PORT"] = "tcp://10.0.0.1:8081"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert resolved(environ={**kubernetes, "HUB_THREADS": "3"}).threads == 3
        assert not caught
        for _ in range(2):
            assert resolved(environ={**kubernetes, "HUB_VERBOSE": "1", "HUB_PROTOCOL": "https"}) == Options()
    (text,) = (str(item.message) for item in caught)
    assert "has such a name: HUB_PROTOCOL, HUB_VERBOSE\n" in text


@pytest.mark.parametrize(
    "variable", ["HUB_THRED", "HUB_PROGRES", "HUB_CUDAGRAPHS", "HUB_CACHE", "HUB_CACHE_LEVEL", "HUB_COMPILE_WORKERS"]
)
def test_a_variable_that_was_meant_for_the_hub_is_an_error(variable: str) -> None:
    """A misspelling, a key of a table, or a former option."""
    assert variable in message_of(environ={variable: "1"})


def test_an_unknown_key_in_a_file_names_the_file(tmp_path: Path) -> None:
    """A misspelt key in hub.toml is found by its path."""
    deep = repository(tmp_path, "acuracy = 0.1\n")
    assert f"unknown option 'acuracy' (from {tmp_path / 'hub.toml'}); did you mean 'accuracy'?" in message_of(cwd=deep)


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    """A syntax error gives the path and the line."""
    deep = repository(tmp_path, "threads 2\n")
    assert str(tmp_path / "hub.toml") in message_of(cwd=deep)
    assert "line 1" in message_of(cwd=deep)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("threads", "two", "a whole number from 1 to 1024"),
        ("threads", 0, "a whole number from 1 to 1024"),
        ("threads", 1025, "a whole number from 1 to 1024"),
        ("threads", True, "a whole number from 1 to 1024"),
        ("threads", 2.5, "a whole number from 1 to 1024"),
        ("accuracy", 0.0, "a number above 0"),
        ("accuracy", float("nan"), "a number above 0"),
        ("strict", 1, "true or false"),
        ("renew", "yes", "true or false"),
        ("tune", "hard", 'one of "off", "fast" and "full"'),
        ("budget_s", -1.0, "a number of seconds above 0"),
        ("backends", "onnxruntime", "names of backends"),
        ("backends", [1], "names of backends"),
        ("exclude", {"a": 1}, "names of backends"),
        ("force", ["aten.softmax"], "a mapping from operators to backends"),
        ("force", {"softmax": "eager"}, "a mapping from operators to backends"),
        ("debug_dir", 3, "the path of a folder"),
        ("debug_dir", "", "the path of a folder"),
    ],
)
def test_a_wrong_value_names_the_key_the_place_the_type_and_an_example(key: str, value: Any, wanted: str) -> None:
    """The message contains everything needed to fix the value."""
    text = message_of({key: value})
    assert f"option {key!r} (from options=) must be {wanted}, got {value!r}" in text
    assert f"for example {key} = " in text


@pytest.mark.parametrize(
    ("variable", "text"),
    [("HUB_THREADS", "many"), ("HUB_STRICT", "maybe"), ("HUB_FORCE", "aten.softmax"), ("HUB_ACCURACY", "x")],
)
def test_unreadable_text_names_its_variable(variable: str, text: str) -> None:
    """Text that cannot be read as the type is refused with the variable's name."""
    assert f"(from {variable}) must be" in message_of(environ={variable: text})


@pytest.mark.parametrize("key", PATHS)
def test_a_folder_of_a_user_who_does_not_exist_is_a_wrong_value(key: str, tmp_path: Path) -> None:
    """Python cannot expand `~name` then; the setting is named, wherever it was written."""
    fact = f"option {key!r} .*got '~nobody-of-this-name/x'"
    with pytest.raises(OptionError, match=fact):
        resolve(None, {variable_of(key): "~nobody-of-this-name/x"}, tmp_path)
    with pytest.raises(OptionError, match=fact):
        resolve(None, {}, repository(tmp_path, f'{key} = "~nobody-of-this-name/x"\n'))


@pytest.mark.parametrize("key", KEYS)
def test_an_example_can_be_pasted_where_the_mistake_was_made(key: str, tmp_path: Path) -> None:
    """The hint's example is written as its source writes settings, and is a right value there."""

    def example(origin: str) -> str:
        hint = wrong_value(key, object(), origin).hint
        assert hint is not None
        return hint.removeprefix("for example ")

    variable, text = example(variable_of(key)).split("=", 1)
    assert variable == variable_of(key)
    resolved({}, {variable: text})
    path = tmp_path / "hub.toml"
    line, _, table = example(str(path)).partition(" in ")
    path.write_text(f"{table}\n{line}\n")
    of_file = resolved({}, cwd=tmp_path)
    if "." in key:
        return
    name, value = example("options=").split(" = ")
    of_python = resolved({name: literal_eval(value)})
    assert name == key
    if key not in ("plan", "debug_dir"):  # a relative path starts at the file
        assert getattr(of_file, key) == getattr(of_python, key)


def test_an_example_for_a_flag_is_a_flag() -> None:
    """Flags have dashes, and names without a unit."""
    with pytest.raises(OptionError) as caught:
        parse_text("budget_s", "soon", COMMAND_LINE)
    assert caught.value.hint == "for example --budget 10m"


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ({"backends": ["a"], "exclude": ["a"]}, "'a' is both requested and excluded"),
        ({"exclude": ["a"], "force": {"aten.gelu": "a"}}, "aten.gelu is forced to 'a', which is not allowed"),
        ({"backends": ["b"], "force": {"aten.gelu": "a"}}, "aten.gelu is forced to 'a', which is not allowed"),
        ({"exclude": ["eager"]}, "eager is the fallback and cannot be excluded"),
    ],
)
def test_contradictions_are_named(given: Mapping[str, Any], fact: str) -> None:
    """Two contradictory settings are an error, not a guess."""
    assert fact in message_of(given)


def test_a_contradiction_names_both_places() -> None:
    """Settings from different sources may contradict each other; both are named."""
    text = message_of({"backends": ["a"]}, {"HUB_EXCLUDE": "a"})
    assert "'backends' (from options=)" in text
    assert "'exclude' (from HUB_EXCLUDE)" in text


def test_options_that_are_no_mapping_are_refused() -> None:
    """`options=` takes a dictionary."""
    assert "options= must be a mapping, got list" in message_of([("threads", 2)])  # pyright: ignore


def test_a_backend_that_is_not_installed_is_named_with_the_nearest() -> None:
    """Names of backends are checked against those that are registered."""
    options = resolved({"backends": ["onxruntime"]})
    with pytest.raises(OptionError, match="no backend is named 'onxruntime'; did you mean 'onnxruntime'"):
        check_backends(options, ("onnxruntime", "openvino"))
    check_backends(resolved({"backends": ["openvino"], "force": {"aten.gelu": "eager"}}), ("onnxruntime", "openvino"))


def test_flags_are_read_like_variables() -> None:
    """The command line writes settings as the environment does."""
    assert parse_text("force", "aten.softmax=eager", "--force") == {"aten.softmax": "eager"}
    with pytest.raises(OptionError, match="from --threads"):
        parse_text("threads", "x", "--threads")


def test_equal_settings_give_equal_text_wherever_they_came_from() -> None:
    """The JSON form holds values only, so that it can be part of a cache key."""
    assert resolved({"threads": 2}).to_json() == resolved(environ={"HUB_THREADS": "2"}).to_json()
    assert json.loads(resolved({"debug_dir": "/d"}).to_json())["debug_dir"] == "/d"


def test_reading_options_imports_no_torch() -> None:
    """Options are also for the command line, which must answer at once."""
    script = (
        "import sys, pathlib; from hub.config.options import resolve; "
        "resolve(None, {}, pathlib.Path('/')); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
