"""The peer of `benchmarks.prepare`: JSON lines to rows of 512 by Hugging Face's `datasets` and `tokenizers`.

python -m benchmarks.hf_prepare INPUT VOCAB OUTPUT PROCESSES, as the examples of transformers do it: documents are tokenized in
batches, joined with [CLS] and [SEP] around each, cut every 512 tokens and saved with `save_to_disk`. It splits no sentences and
marks no words.
"""

import itertools
import sys
from typing import Any

LENGTH = 512


def main(source: str, vocabulary: str, output: str, processes: int) -> None:
    """Writes the rows."""
    import datasets  # pyright: ignore[reportMissingImports]
    from tokenizers import BertWordPieceTokenizer

    datasets.disable_progress_bars()
    tokenizer = BertWordPieceTokenizer(vocabulary, lowercase=False)

    def tokenized(batch: dict[str, list[str]]) -> dict[str, Any]:
        return {"input_ids": [each.ids for each in tokenizer.encode_batch(batch["text"])]}

    def rows(batch: dict[str, list[list[int]]]) -> dict[str, Any]:
        joined = list(itertools.chain.from_iterable(batch["input_ids"]))
        whole = len(joined) // LENGTH * LENGTH
        return {"input_ids": [joined[place : place + LENGTH] for place in range(0, whole, LENGTH)]}

    found = datasets.load_dataset("json", data_files=source, split="train", cache_dir=f"{output}.cache")
    options: dict[str, Any] = {"batched": True, "num_proc": processes if processes > 1 else None}
    found = found.map(tokenized, remove_columns=found.column_names, **options)
    found.map(rows, **options).save_to_disk(output)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
