# SPDX-License-Identifier: Apache-2.0

import csv
import io


def csv_rows(text: str) -> list[dict[str, str]]:
    """The rows of a CSV by column name."""
    # The reader of Python 3.10 refuses NUL, so a character that is not in the text stands for it.
    stand_in = next(c for c in map(chr, range(0xE000, 0xF8FF)) if c not in text)
    rows = csv.DictReader(io.StringIO(text.replace("\0", stand_in), newline=""))
    return [{key: value.replace(stand_in, "\0") for key, value in row.items()} for row in rows]
