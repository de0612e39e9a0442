#!/bin/bash
# The runtime brings Spark and Delta; a second Spark beside it would be the wrong one.
set -euo pipefail
/databricks/python/bin/pip install --quiet --no-deps "${TAILRACE_PACKAGE:-tailrace}"
/databricks/python/bin/pip install --quiet "orjson>=3.10" "pyarrow>=18" "pydantic>=2.10" "pyyaml>=6.0.2" "rich>=13.9" "typer>=0.15"
