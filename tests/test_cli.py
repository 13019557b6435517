"""The command line: exit codes, messages on the right stream, one small run from end to end."""

import subprocess
import sys

import pytest

import widefield as wf
from widefield import cli
from widefield.gallery.segadlo import fig_1, fig_3

TINY = fig_1.Parameters(width=40, depth=4, n_networks=5, dimension=3, columns=(1, 3))


def call(*argv):
    with pytest.raises(SystemExit) as exit_:
        cli.main(argv)
    return exit_.value.code


def test_version(capsys):
    assert call("--version") == 0
    assert capsys.readouterr().out.strip() == f"widefield {wf.__version__}"


@pytest.mark.parametrize("argv", [("--help",), ("gallery", "--help"), ("gallery", "run", "--help"), ()])
def test_help(capsys, argv):
    assert call(*argv) == 0
    assert "Usage: widefield" in capsys.readouterr().out


def test_list_names_every_entry(capsys):
    assert call("gallery", "list") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("segadlo-1", "segadlo-2", "segadlo-3", "prior-regression"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("gallery", "run", "segadlo-l"), "Did you mean"),
        (("gallery", "run"), "Name at least one figure"),
        (("gallery", "run", "segadlo-1", "--ful"), "--full"),
        (("galery",), "gallery"),
    ],
)
def test_bad_usage_is_2_and_says_what_was_meant(capsys, tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    assert call(*argv) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_2(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert call("gallery", "run", "segadlo-1", "--out", str(tmp_path / "file" / "x")) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_small_run_prints_its_table_and_writes_its_files(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(fig_1, "QUICK", TINY)
    assert call("gallery", "run", "segadlo-1", "--out", str(tmp_path / "new" / "out")) == 0
    out = capsys.readouterr().out
    assert "C(a,a) RNN, static" in out
    assert "verdict" in out
    assert {p.name for p in (tmp_path / "new" / "out").iterdir()} == {f"segadlo-1.{s}" for s in ("png", "nc", "json")}


def test_a_failed_run_is_1_without_traceback_and_others_still_run(capsys, tmp_path, monkeypatch):
    def fail(*args, **options):
        raise wf.SolveError("prior: nonfinite (lower the variances)")

    monkeypatch.setattr(fig_3, "make", fail)
    monkeypatch.setattr(fig_1, "FULL", TINY)
    assert call("gallery", "run", "segadlo-3", "segadlo-1", "--full", "--out", str(tmp_path)) == 1
    captured = capsys.readouterr()
    assert "segadlo-3 failed: prior: nonfinite" in captured.err
    assert "Traceback" not in captured.err
    assert "C(a,a) RNN, static" in captured.out


def test_an_interruption_is_130(capsys, tmp_path, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(fig_1, "make", interrupt)
    assert call("gallery", "run", "segadlo-1", "--out", str(tmp_path)) == 130
    assert "interrupted" in capsys.readouterr().err


def test_the_command_line_loads_nothing_heavy_of_its_own():
    heavy = "[m for m in ('jax', 'scipy', 'matplotlib', 'xarray', 'sklearn', 'widefield.gallery') if m in sys.modules]"
    program = f"import sys, widefield.cli; print({heavy})"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_package_is_the_command():
    found = subprocess.run([sys.executable, "-m", "widefield", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("widefield ")
