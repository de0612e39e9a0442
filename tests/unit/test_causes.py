"""What an error of Spark says of the machine, and what it says of the data."""

from __future__ import annotations

import pytest

from tailrace.spark.causes import is_passing


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("java.lang.OutOfMemoryError", "Java heap space"),
        ("org.apache.spark.memory.SparkOutOfMemoryError", "no memory"),
        ("org.apache.spark.SparkException", "Task 0 failed: java.lang.OutOfMemoryError: Java heap space"),
        ("java.io.FileNotFoundException", "/in/a.csv (Too many open files)"),
        ("java.io.IOException", "Input/output error"),
        ("org.apache.spark.SparkException", "Lost task: ExecutorLostFailure (executor 1 exited)"),
        ("org.apache.spark.SparkException", "[SPARK_JOB_CANCELLED] Job 3 cancelled because it was asked to"),
    ],
)
def test_a_machine_at_its_limits_says_nothing_of_the_data(name: str, text: str) -> None:
    assert is_passing([("org.apache.spark.SparkException", "Job aborted"), (name, text)])


@pytest.mark.parametrize("file", ["orders-cancelled.parquet", "FetchFailed.csv", "OutOfMemoryError.json"])
def test_the_name_of_a_file_is_no_sign(file: str) -> None:
    assert not is_passing([("org.apache.spark.SparkException", f"Encountered error while reading file /in/{file}.")])
