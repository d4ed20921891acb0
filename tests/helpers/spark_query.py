# SPDX-License-Identifier: Apache-2.0
"""Asks Spark in local mode about a folder of Parquet files: `spark_query FOLDER < QUERY`.

Prints the rows as JSON. It is a process of its own, because Spark starts a JVM that stays.
"""

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    builder = SparkSession.builder.master("local[1]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "1",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.read.parquet(sys.argv[1]).createOrReplaceTempView("spans")
    print(json.dumps([row.asDict() for row in session.sql(sys.stdin.read()).collect()]))
    session.stop()


if __name__ == "__main__":
    main()
