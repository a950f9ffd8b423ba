from tests.audits.test_any_head import *
from tests.audits.test_any_head import BAD, rows_of
import pytest
from hf_attnprobe import AttnProbeError


def test_collect(rows_of, tmp_path):
    bad = []
    for head, data, options, message in BAD:
        options = dict(options)
        target = options.pop("target", None)
        tests = ["correlation" if target is None else Correlation(target=target)]
        try:
            rows_of(head, data, tests, output_dir=tmp_path / "out", **options)
        except AttnProbeError as error:
            if message not in str(error):
                bad.append((head, message, str(error)))
    assert not bad, "\n".join(map(str, bad))
