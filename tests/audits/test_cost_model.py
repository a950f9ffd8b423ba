"""Estimates of memory from a few measured texts."""

from hf_attnprobe.audits.cost_model import estimate_text_bytes


LENGTHS = [3, 5, 8, 13, 20, 60]


def make_measure():
    """A measurement that takes 10 bytes per token, and the lengths that were measured."""
    measured = []

    def measure(n_tokens):
        measured.append(n_tokens)
        return 10 * n_tokens

    return measure, measured


def test_one_measurement_is_enough_if_the_longest_text_needs_little():
    measure, measured = make_measure()
    assert {estimate_text_bytes(n, LENGTHS, measure, 600) for n in LENGTHS} == {600}
    assert {*measured} == {60}


def test_a_shorter_text_is_measured_by_the_longest_one_up_to_a_power_of_two():
    measure, _ = make_measure()
    estimates = [estimate_text_bytes(n, LENGTHS, measure, 599) for n in LENGTHS]
    # 3 tokens: no text has 4 of them; 5 and 8: up to 8; 13: up to 16; 20: up to 32.
    assert estimates == [30, 80, 80, 130, 200, 600]
    assert all(estimate >= 10 * n for estimate, n in zip(estimates, LENGTHS, strict=True))


def test_memory_of_a_longer_text_grows_with_the_square_of_its_length():
    measure, _ = make_measure()
    assert estimate_text_bytes(120, LENGTHS, measure, 0) == 600 * 4
