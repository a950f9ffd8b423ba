"""Several audits side by side, and what differs between them, with paired intervals."""

from hf_attnprobe.auditing.differences.compare import compare_audits, differences
from hf_attnprobe.auditing.differences.report import AuditComparison


__all__ = ["AuditComparison", "compare_audits", "differences"]
