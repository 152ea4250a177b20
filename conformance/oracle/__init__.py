"""The float64 reference of GroupQueryAttention: the values, and which elements are defined.

Read it together with the operator's documentation and ``docs/oracle.md``, in this order: ``call``
(the meaning of a call's tensors), ``quantisation``, ``rotary``, ``cache``, ``attention``,
``reference``. ``values`` has the steps of a computation for a single query.
"""

from conformance.oracle.attention import Attention
from conformance.oracle.cache import Tokens
from conformance.oracle.errors import OracleError
from conformance.oracle.quantisation import Format
from conformance.oracle.reference import Reference, reference

__all__ = ["Attention", "Format", "OracleError", "Reference", "Tokens", "reference"]
