"""A tail rule is read off a trial's differing extents, and only where a rule can mend the form."""

from __future__ import annotations

from collections.abc import Iterable

from qbpass.rewrites.extents import EVERY_ROW_EXACT, NO_TAIL_EFFECT, ExtentRule
from qbpass.rewrites.falsify import PASTS, Trial, Witness, tail_rule
from qbpass.rewrites.plan import SiteForm

MAX_QUERIES = 4


def trial_with(differs: Iterable[int], pasts: Iterable[int] = PASTS) -> Trial:
    """Every row but a block's last differs where its extent is one of `differs`."""
    wanted = set(differs)
    trial = Trial(SiteForm())
    for past in pasts:
        for queries in range(1, MAX_QUERIES + 1):
            for row in range(queries - 1):
                if past + row + 1 in wanted:
                    trial.differing.append(Witness(past, queries, row, past + row + 1, 0, 1e-7))
    return trial


def test_extents_with_a_remainder_of_three_are_a_rule_modulo_four() -> None:
    trial = trial_with(n for n in range(1100) if n % 4 == 3)
    assert tail_rule(trial, PASTS, MAX_QUERIES) == ExtentRule(4, (3,))


def test_a_few_chance_agreements_do_not_hide_the_rule() -> None:
    trial = trial_with(n for n in range(1100) if n % 4 == 3 and n not in (3, 63))
    assert tail_rule(trial, PASTS, MAX_QUERIES) == ExtentRule(4, (3,))


def test_two_residues_of_eight_are_found_as_two() -> None:
    trial = trial_with(n for n in range(1100) if n % 8 in (3, 6))
    assert tail_rule(trial, PASTS, MAX_QUERIES) == ExtentRule(8, (3, 6))


def test_nothing_differing_is_no_rule_at_all() -> None:
    assert tail_rule(Trial(SiteForm()), PASTS, MAX_QUERIES) == NO_TAIL_EFFECT


def test_a_last_row_that_differs_has_no_tail_to_blame() -> None:
    trial = trial_with(n for n in range(1100) if n % 4 == 3)
    trial.differing.append(Witness(past=8, queries=3, row=2, extent=11, seed=0, max_abs_difference=1e-7))
    assert tail_rule(trial, PASTS, MAX_QUERIES) is None


def test_every_extent_differing_makes_every_row_exact() -> None:
    assert tail_rule(trial_with(range(1100)), PASTS, MAX_QUERIES) == EVERY_ROW_EXACT


def test_extents_without_a_pattern_make_every_row_exact() -> None:
    scattered = [1, 6, 11, 62, 65, 254, 259, 510, 1023]
    assert tail_rule(trial_with(scattered), PASTS, MAX_QUERIES) == EVERY_ROW_EXACT
