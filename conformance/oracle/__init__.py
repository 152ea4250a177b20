"""The float64 reference of GroupQueryAttention: values, and which elements are defined at all.

Read beside the operator's documentation and ``docs/oracle.md``, in this order: ``call`` (what the
tensors of a call mean), ``rotary``, ``cache``, ``attention``, ``reference``.
"""

from conformance.oracle.attention import Attention
from conformance.oracle.errors import NotComputed, OracleError
from conformance.oracle.reference import Reference, reference

__all__ = ["Attention", "NotComputed", "OracleError", "Reference", "reference"]
