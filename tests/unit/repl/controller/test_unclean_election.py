"""Which copy an operator's re-seed or forced election takes (H12)."""

from __future__ import annotations

from isthmus.repl.controller.unclean_election import ReplicaReport, data_loss, most_complete


def a_copy(node: str, log_epoch: int, leo: int, hw: int = 0, *, transfers: bool = False) -> ReplicaReport:
    """A report of a replica that has applied nothing."""
    return ReplicaReport(node, log_epoch, log_epoch, leo, hw, 0, 1, transfers=transfers)


def test_a_log_of_a_newer_epoch_is_taken_before_a_longer_one_of_an_older_epoch() -> None:
    """The newer epoch's leader held all that was committed before; the longer tail of the older epoch never was, or
    was replaced. Of logs with the same last epoch the longer one is taken."""
    newer, longer = a_copy("n1", 7, 100), a_copy("n2", 6, 150)
    for copies in ([newer, longer], [longer, newer]):
        assert most_complete(copies) == newer
    assert most_complete([newer, longer, a_copy("n0", 7, 101)]).node == "n0"


def test_of_equal_logs_the_one_that_knows_more_commits_is_taken_and_one_that_receives_rows_last() -> None:
    """A copy under state transfer counts for nothing, however long the rest of its log is."""
    knowing, other = a_copy("n1", 7, 100, hw=90), a_copy("n2", 7, 100, hw=80)
    assert most_complete([knowing, other]) == knowing
    assert most_complete([a_copy("n3", 9, 900, transfers=True), other]) == other


def test_what_a_longer_log_of_an_older_epoch_has_is_no_loss() -> None:
    """What lies beyond the newer epoch's begin was never committed; a newer epoch that is passed over is a loss."""
    newer, longer = a_copy("n1", 7, 100), a_copy("n2", 6, 150)
    assert data_loss(newer, [newer, longer], []) == []
    (sentence,) = data_loss(longer, [newer, longer], [])
    assert "n1 ends at 100 in epoch 7, n2 at 150 in epoch 6" in sentence
