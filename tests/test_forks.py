"""Processes that a program forks or spawns before, during and after planning; programs that end meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

PRELUDE = """
    import faulthandler, os, sys, threading, time, traceback, warnings
    import torch
    from torch import nn
    import hub

    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4), nn.Softmax(-1)).eval()

    def compiled(model, tune="off"):
        options = {"tune": tune, "backends": ("onnxruntime", "openvino", "disc"), "budget_s": 5}
        return torch.compile(model, backend="hub", options=options)

    def forked(work, at_most_s=120):
        "Run work in a fork; return its exit status, or 'hangs'."
        pid = os.fork()
        if pid == 0:
            faulthandler.dump_traceback_later(at_most_s / 2)
            code = 1
            try:
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        end_s = time.monotonic() + at_most_s
        while time.monotonic() < end_s:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        return "hangs"

    torch.set_grad_enabled(False)
    model, x = net(), torch.randn(16, 8)
    call = compiled(model)
"""


def run(program: str, tmp_path: Path, timeout_s: float = 400) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, with a cache of its own."""
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(PRELUDE) + textwrap.dedent(program))
    return subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=timeout_s, cwd=tmp_path)


def left_behind(marker: Path) -> list[str]:
    """Return the command lines of the hub's processes whose working directory is still a given folder."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == marker:
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended
    return found


def test_a_fork_of_a_program_that_has_planned_runs_in_eager(tmp_path: Path) -> None:
    """Threads of compilers do not survive a fork: executables from before, and new programs, run in eager there."""
    done = run(
        """
        expected = model(x)
        torch.testing.assert_close(call(x), expected)
        assert set(hub.plans(call)[0].backends) - {"eager"}, hub.plans(call)[0].backends
        frozen = hub.freeze(call, x)

        def work():
            torch.set_num_threads(1)
            for found in (call, compiled(nn.Sequential(net(), nn.Tanh()).eval()), frozen):
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    y = found(x)
                expected = model(x) if found in (call, frozen) else torch.tanh(model(x))
                torch.testing.assert_close(y, expected)
                if found is not frozen:
                    assert any("fork" in str(item.message) for item in caught), [str(item.message) for item in caught]
            assert hub.plans(call)[-1].backends == ("eager",), hub.plans(call)  # captured again, with fewer threads

        assert forked(work) == 0
        torch.testing.assert_close(call(x), expected)
        assert set(hub.plans(call)[0].backends) - {"eager"}
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_fork_of_a_program_that_replays_a_plan_file_runs_in_eager(tmp_path: Path) -> None:
    """A fork that cannot run the plan is no mistake in its file: there is one warning, and no error in any call."""
    done = run(
        """
        from pathlib import Path

        expected = model(x)
        torch.testing.assert_close(call(x), expected)
        Path("plan.json").write_text(hub.plans(call)[0].to_json())
        torch._dynamo.reset()
        call = torch.compile(model, backend="hub", options={"plan": "plan.json"})
        torch.testing.assert_close(call(x), expected)
        assert hub.plans(call)[0].decided_by == "plan file"

        def work():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(3):
                    torch.testing.assert_close(call(x), expected)
            assert sum("fork" in str(item.message) for item in caught) == 1, [str(item.message) for item in caught]

        assert forked(work) == 0
        torch.testing.assert_close(call(x), expected)
        assert hub.plans(call)[0].decided_by == "plan file"
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_fork_of_a_program_that_has_only_imported_the_hub_plans_by_itself(tmp_path: Path) -> None:
    """A server that forks its workers before it compiles anything loses nothing."""
    done = run(
        """
        def work():
            torch.testing.assert_close(call(x), net()(x))
            assert set(hub.plans(call)[0].backends) - {"eager"}, hub.plans(call)[0]

        assert forked(work) == 0
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_fork_in_the_middle_of_planning_hangs_nowhere(tmp_path: Path) -> None:
    """Locks of the planning thread are free in the fork, which returns the right answer, as does the parent."""
    done = run(
        """
        from torch._dynamo.convert_frame import compile_lock
        from hub.frontend import ownership

        call = compiled(model, tune="fast")
        results = []
        def plan():
            with torch.no_grad():
                results.append(call(x))
        thread = threading.Thread(target=plan)
        thread.start()
        def is_captured():
            "Return whether Dynamo is done: a fork of that is PyTorch's own affair."
            if not ownership._graphs or not compile_lock.acquire(blocking=False):
                return False
            compile_lock.release()
            return True

        while not is_captured():
            time.sleep(0.01)
        def work():
            torch.set_num_threads(1)
            warnings.simplefilter("ignore")
            torch.testing.assert_close(call(x), net()(x))
        outcomes = []
        while thread.is_alive():
            outcomes.append(forked(work))
            time.sleep(0.5)
        thread.join()
        assert outcomes and set(outcomes) == {0}, outcomes
        torch.testing.assert_close(results[0], model(x))
        torch.testing.assert_close(call(x), model(x))
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_loader_with_worker_processes_beside_a_compiled_model(tmp_path: Path) -> None:
    """DataLoader's processes, forked and spawned, come and go; the compiled model keeps its plan."""
    done = run(
        """
        from torch.utils.data import DataLoader, TensorDataset

        if __name__ == "__main__":
            data = TensorDataset(torch.randn(64, 8))
            for way in ("fork", "spawn"):
                for (batch,) in DataLoader(data, batch_size=16, num_workers=2, multiprocessing_context=way):
                    torch.testing.assert_close(call(batch), model(batch))
            assert set(hub.plans(call)[0].backends) - {"eager"}
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("is_daemon", [True, False])
def test_a_program_that_ends_while_a_thread_plans_leaves_nothing(is_daemon: bool, tmp_path: Path) -> None:
    """The interpreter's end waits for no compiler, and no worker outlives it."""
    done = run(
        f"""
        from hub.process.family import descendants

        def plan():
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compiled(net(), tune="fast")(x)
        threads = [threading.Thread(target=plan, daemon={is_daemon}) for _ in range(2)]
        for thread in threads:
            thread.start()
        while sum(1 for _ in descendants(os.getpid())) < 2:  # a server of processes and what it forked: workers compile
            assert all(thread.is_alive() for thread in threads), "planned without a worker"
            time.sleep(0.01)
        print("ended", flush=True)
        """,
        tmp_path,
    )
    assert "ended" in done.stdout
    # Python ends a daemon thread when it next requests the GIL: in the middle of C++, that ends the process
    marks = (
        "terminate called without an active exception",
        "PyThreadState_Get: the function must be called with the GIL held",
    )
    is_cut_off = is_daemon and any(mark in done.stderr for mark in marks)
    assert done.returncode == (-signal.SIGABRT if is_cut_off else 0), done.stderr[-3000:]
    end_s = time.monotonic() + 30
    while left_behind(tmp_path) and time.monotonic() < end_s:  # they notice their parent's end, and end
        time.sleep(0.1)
    assert left_behind(tmp_path) == []
