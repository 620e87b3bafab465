"""Sections of a model card that prose fills: intended use, limitations and citation, each from facts of the model and its run."""

from collections.abc import Mapping
from typing import Any

from spanjax.pretrained.model import Model
from spanjax.tasks.base import HfHead

_TASK_USES: Mapping[HfHead, str] = {
    "sequence": "Labels or scores for sentences, and for pairs of sentences, of the kind that it was fine-tuned on.",
    "token": "Labels for the words of a text of the kind that it was fine-tuned on.",
    "question": "Answers to questions by a span of a given text. It does not know answers that are not in that text.",
}

_SPANBERT = """@article{joshi-etal-2020-spanbert,
  title = {{SpanBERT}: Improving Pre-training by Representing and Predicting Spans},
  author = {Joshi, Mandar and Chen, Danqi and Liu, Yinhan and Weld, Daniel S. and Zettlemoyer, Luke and Levy, Omer},
  journal = {Transactions of the Association for Computational Linguistics},
  volume = {8},
  pages = {64--77},
  year = {2020}
}"""
_PAPERS: Mapping[str, str] = {
    "bert": """@inproceedings{devlin-etal-2019-bert,
  title = {{BERT}: Pre-training of Deep Bidirectional Transformers for Language Understanding},
  author = {Devlin, Jacob and Chang, Ming-Wei and Lee, Kenton and Toutanova, Kristina},
  booktitle = {Proceedings of NAACL-HLT},
  year = {2019}
}""",
    "roberta": """@article{liu-etal-2019-roberta,
  title = {{RoBERTa}: A Robustly Optimized {BERT} Pretraining Approach},
  author = {Liu, Yinhan and Ott, Myle and Goyal, Naman and Du, Jingfei and Joshi, Mandar and Chen, Danqi and Levy, Omer
            and Lewis, Mike and Zettlemoyer, Luke and Stoyanov, Veselin},
  journal = {arXiv:1907.11692},
  year = {2019}
}""",
    "xlm-roberta": """@inproceedings{conneau-etal-2020-unsupervised,
  title = {Unsupervised Cross-lingual Representation Learning at Scale},
  author = {Conneau, Alexis and Khandelwal, Kartikay and Goyal, Naman and Chaudhary, Vishrav and Wenzek, Guillaume
            and Guzm\\'an, Francisco and Grave, Edouard and Ott, Myle and Zettlemoyer, Luke and Stoyanov, Veselin},
  booktitle = {Proceedings of ACL},
  year = {2020}
}""",
    "camembert": """@inproceedings{martin-etal-2020-camembert,
  title = {{CamemBERT}: a Tasty {French} Language Model},
  author = {Martin, Louis and Muller, Benjamin and Ortiz Su\\'arez, Pedro Javier and Dupont, Yoann and Romary, Laurent
            and de la Clergerie, \\'Eric and Seddah, Djam\\'e and Sagot, Beno\\^it},
  booktitle = {Proceedings of ACL},
  year = {2020}
}""",
    "distilbert": """@article{sanh-etal-2019-distilbert,
  title = {{DistilBERT}, a Distilled Version of {BERT}: Smaller, Faster, Cheaper and Lighter},
  author = {Sanh, Victor and Debut, Lysandre and Chaumond, Julien and Wolf, Thomas},
  journal = {arXiv:1910.01108},
  year = {2019}
}""",
    "albert": """@inproceedings{lan-etal-2020-albert,
  title = {{ALBERT}: A Lite {BERT} for Self-supervised Learning of Language Representations},
  author = {Lan, Zhenzhong and Chen, Mingda and Goodman, Sebastian and Gimpel, Kevin and Sharma, Piyush and Soricut, Radu},
  booktitle = {International Conference on Learning Representations},
  year = {2020}
}""",
    "electra": """@inproceedings{clark-etal-2020-electra,
  title = {{ELECTRA}: Pre-training Text Encoders as Discriminators Rather Than Generators},
  author = {Clark, Kevin and Luong, Minh-Thang and Le, Quoc V. and Manning, Christopher D.},
  booktitle = {International Conference on Learning Representations},
  year = {2020}
}""",
    "modernbert": """@article{warner-etal-2024-modernbert,
  title = {Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder for Fast, Memory Efficient, and Long Context
           Finetuning and Inference},
  author = {Warner, Benjamin and others},
  journal = {arXiv:2412.13663},
  year = {2024}
}""",
    "xlnet": """@inproceedings{yang-etal-2019-xlnet,
  title = {{XLNet}: Generalized Autoregressive Pretraining for Language Understanding},
  author = {Yang, Zhilin and Dai, Zihang and Yang, Yiming and Carbonell, Jaime and Salakhutdinov, Ruslan and Le, Quoc V.},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2019}
}""",
    "deberta-v2": """@inproceedings{he-etal-2023-debertav3,
  title = {{DeBERTaV3}: Improving {DeBERTa} using {ELECTRA}-Style Pre-Training with Gradient-Disentangled Embedding Sharing},
  author = {He, Pengcheng and Gao, Jianfeng and Chen, Weizhu},
  booktitle = {International Conference on Learning Representations},
  year = {2023}
}""",
}
"""Model type of transformers -> its paper."""


def intended_use(model: Model) -> list[str]:
    """Describes the uses that the model's heads allow, and those that it is not made for."""
    if model.kind:
        uses = [_TASK_USES[model.kind]]
    else:
        uses = ["Encoder to fine-tune on a task, or to take vectors of tokens and texts from."]
        if "sbo" in model.params:
            uses.append("Filling masked tokens, and masked spans from the two tokens around them.")
        elif {"mlm", "plm"} & model.parts:
            uses.append("Filling masked tokens.")
    uses.append(
        "Not made to write text or to answer as a chat model, nor to decide about people without a person's check."
    )
    return uses


def limitations(model: Model, rows: Mapping[str, Any], language: str) -> list[str]:
    """Lists limits that follow from the model's sizes, vocabulary and text."""
    text = f"It was trained on text in: {language}." if language else "Languages of its text: TO FILL IN."
    found = [f"It reads at most {model.encoder.positions:,} tokens at once; longer input is cut.", text]
    if model.vocabulary and model.vocabulary.casing == "lower":
        found.append("Its vocabulary is lower-cased: it sees no difference between capitals and small letters.")
    tokens, unknown = rows.get("text_tokens"), rows.get("unknown_tokens")
    if tokens and isinstance(unknown, int):
        found.append(f"{unknown / tokens:.2%} of the tokens of its training text are unknown to its vocabulary.")
    if "sbo" in model.params:
        offsets = len(model.params["sbo"]["position"]["embedding"])
        found.append(f"Its span boundary head fills spans of at most {offsets:,} tokens.")
    found.append(
        "It repeats what its training text contains, errors and prejudices included; nobody measured them here."
    )
    return found


def citations(model: Model, run: Mapping[str, Any]) -> list[str]:
    """Returns BibTeX entries: SpanBERT's for its objective or masking, and that of the architecture."""
    masking = run.get("objective", {}).get("masking")
    spans = isinstance(masking, Mapping) and masking.get("class") == "GeometricSpans"
    papers = [_SPANBERT] if spans or "sbo" in model.params else []
    return [*papers, _PAPERS[model.family.model_type]]
