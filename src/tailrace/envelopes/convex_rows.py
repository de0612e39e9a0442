"""The row of a change log of Convex: `raw_change_log`, one row per document that was read or changed.

`document` is the document as the server encoded it, without the fields that only travel with it; `timestamp` is
the server's own, in nanoseconds; `op` is one of the letters of `core.change.Op`. A reset of a table has no
document and no id.
"""

from __future__ import annotations

import pyarrow as pa

ARROW = pa.schema(
    [
        ("component_path", pa.string()),
        ("table_name", pa.string()),
        ("document_id", pa.string()),
        ("timestamp", pa.int64()),
        ("op", pa.string()),
        ("schema_fingerprint", pa.string()),
        ("document", pa.string()),
    ]
)

SPARK = (
    "component_path string, table_name string, document_id string, timestamp bigint, op string, "
    "schema_fingerprint string, document string"
)
