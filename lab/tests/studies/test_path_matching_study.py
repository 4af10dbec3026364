"""The study of path matching runs, and the page on choosing a rule quotes its readings."""

from pages import ROOT
from studies import common
from studies.path_matching import study


def test_a_small_study_runs_and_resumes(tmp_path, capsys):
    small = study.Study(1, 1, (4, 3), 32)
    cells = common.Cells(tmp_path, small)
    rows = list(study.readings(small, cells))
    assert {row["evaluations"] for row in rows} == {4, 3} and all(row["regret"] > 0 for row in rows)
    own = [row for row in rows if row["variant"] == "path matching"]
    assert len(own) == 2
    for row in own:
        cell = cells.load(f"{row['problem']}-{row['evaluations']}")
        regrets = (cell["scores"] / cell["tuned"]).tolist()
        assert row["regret"] == regrets[study.RULES.index(row["rule"])] >= min(regrets)
        assert 0 <= row["chosen"] <= 1
    capsys.readouterr()
    assert list(study.readings(small, common.Cells(tmp_path, small))) == rows
    assert not capsys.readouterr().err


def test_the_page_on_gamma_quotes_the_regret_of_auto():
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    sentence = study.regret_sentence(common.read_csv(ROOT / "studies" / "path_matching" / "readings.csv"))
    assert common.with_parts(page, {"regret": sentence}) == page
