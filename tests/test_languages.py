"""A language without spaces and one in a right-to-left script: prepare, two training steps, show."""

import pathlib

import numpy as np
import pytest

from spanjax.data.feed.rows import open_rows
from spanjax.prepare import main as prepare
from spanjax.train import main as train
from tests.running import records, shrunk

CHINESE = """老船长在港口修理旧钟。 年轻的画家在桥边画了一条船。 安静的图书管理员记得三本厚书。
邻居在市场上卖热面包。 镇长每年冬天都去旧塔。 暴风雨之前孩子们回家了。 蓝色的灯笼挂在图书馆后面。
她在星期一买了两张车票。 火车晚上十点到达车站！ 你见过那座石桥吗？ 河边的树已经开花了。
老师请学生们朗读课文。 山上的雪还没有融化。 他把信放在桌子上就走了。 渔民清晨出海，傍晚回来。"""
ARABIC = """أصلح البحار العجوز الساعة القديمة في الميناء. رسمت الفنانة الشابة قاربا صغيرا قرب الجسر.
يتذكر أمين المكتبة ثلاثة كتب ثقيلة. باع جاري الخبز الساخن في السوق. يزور العمدة البرج القديم كل شتاء.
عاد الأطفال إلى البيت قبل العاصفة. هل رأيت الفانوس الأزرق خلف المكتبة؟ اشترت تذكرتين يوم الاثنين.
يصل القطار إلى المحطة في العاشرة ليلا. أزهرت الأشجار على ضفة النهر. طلب المعلم من الطلاب قراءة الدرس.
لم يذب الثلج على الجبل بعد. وضع الرسالة على الطاولة ثم خرج. يخرج الصيادون إلى البحر فجرا ويعودون مساء."""


def documents(text: str, count: int = 120) -> str:
    """Documents of sentences of the language, drawn in turn."""
    sentences = (
        text.replace("\n", " ").split(" ") if text is CHINESE else text.replace("؟", "؟|").replace(".", ".|").split("|")
    )
    sentences = [sentence.strip() for sentence in sentences if sentence.strip()]
    draw = np.random.default_rng(0)
    joiner = "" if text is CHINESE else " "
    return "\n\n".join(joiner.join(draw.choice(sentences, draw.integers(3, 9))) for _ in range(count)) + "\n"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [pytest.param(CHINESE, 132, id="chinese"), pytest.param(ARABIC, 110, id="arabic", marks=pytest.mark.slow)],
)
def test_prepare_train_and_show(
    text: str, pieces: int, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(documents(text), "utf-8")
    options = ["--train-vocab", str(pieces), "--length", "32", "--holdout", "0.2", "--workers", "1"]
    assert prepare(["--input", str(corpus), "--output", str(tmp_path / "rows"), *options]) == 0
    rows = open_rows(tmp_path / "rows" / "train")
    assert rows.manifest.unknown_tokens == 0 and rows.manifest.sentences > 4 * rows.manifest.documents * 0.6
    read = "".join(rows.vocabulary.decode(row[row > 0]) for row in rows.fetch(np.arange(len(rows))).tokens_BL)
    for piece in ("港口", "画家") if text is CHINESE else ("الميناء", "المكتبة"):
        assert piece in read
    settings = ["--feed=numpy", "--encoder.positions=32"]
    assert train(shrunk("configs/pretrain/tiny.py", tmp_path / "rows", tmp_path / "run", 2, *settings)) == 0
    losses = records(tmp_path / "run", "train/mlm/loss")
    assert sorted(losses) == [1, 2] and all(0 < loss < 8 for loss in losses.values())
    capsys.readouterr()
    assert prepare(["show", str(tmp_path / "rows"), "--count", "3"]) == 0
    shown = capsys.readouterr().out
    letters = {letter for letter in text if letter.isalpha()}
    assert len(letters & set(shown)) > len(letters) / 4 and "[MASK]" in shown
