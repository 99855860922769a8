"""loggers.ranks: one logger among several processes."""

from __future__ import annotations

import pytest

from loggers import JSONLogger, rank, rank_zero
from loggers.errors import RankError

VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Forget whatever launched the tests."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_a_process_by_itself_is_rank_zero():
    """Nothing launched it."""
    assert rank() == 0


@pytest.mark.parametrize("variable", VARIABLES)
def test_launchers_say_the_rank(monkeypatch, variable):
    """Each in a variable of its own."""
    monkeypatch.setenv(variable, "3")

    assert rank() == 3


def test_torchrun_goes_before_slurm(monkeypatch):
    """One Slurm task may launch several processes; an empty variable says nothing."""
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("RANK", "5")
    assert rank() == 5

    monkeypatch.setenv("RANK", "")
    assert rank() == 1


@pytest.mark.parametrize("value", ["-1", "one", "0.5", " "])
def test_nonsense_is_refused(monkeypatch, value):
    """Two processes that both take themselves for the first would write the same run."""
    monkeypatch.setenv("RANK", value)
    with pytest.raises(RankError, match=rf"^environment variable RANK is '{value}': set it to a rank, or unset it$"):
        rank()


def test_only_rank_zero_gets_the_logger(monkeypatch):
    """Elsewhere None logs nothing."""
    lgr = JSONLogger("never-written.jsonl")
    assert rank_zero(lgr) is lgr

    monkeypatch.setenv("RANK", "1")
    assert rank_zero(lgr) is None
