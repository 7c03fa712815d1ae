"""Models of many architectures, tried as runs try them, are as docs/models.md says."""

from __future__ import annotations

import pytest

from tests.docs.blocks import ROOT, load_script
from tests.exhaustive import EXHAUSTIVE

SAMPLE = ("Gemma2", "GptOss", "Lfm2", "Mixtral", "Phi3, longrope", "Qwen3")
"""One for each engine path, each way to compute rows, and a refusal."""


@pytest.fixture(scope="module")
def script():
    load_script("architecture_catalogue")
    load_script("architecture_trial")
    return load_script("architectures")


@pytest.mark.slow
@pytest.mark.timeout(1800)  # three minutes of CPU with every architecture
@pytest.mark.filterwarnings("ignore")  # of kernels that models look for
def test_architectures_are_as_the_page_of_models_says(script):
    """A sample; every architecture with ARL_EXHAUSTIVE=1."""
    page = (ROOT / "docs" / "models.md").read_text()
    faults, rows = {}, []
    for name in script.ARCHITECTURES if EXHAUSTIVE else SAMPLE:
        title, found = script.found(name)
        rows.append(script.row(title, found))
        if found.wrong or rows[-1] not in page:
            faults[name] = (found.wrong, rows[-1])
    assert not faults
    if EXHAUSTIVE:
        assert script.table(rows) in page


@pytest.mark.slow  # it imports all that trains and decodes
def test_the_page_and_the_claims_count_every_architecture_of_the_catalogue(script):
    page = (ROOT / "docs" / "models.md").read_text()
    table = page[page.index("| architecture |") :].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split(" |")] for line in table.splitlines()[2:]]
    assert len(rows) == len(script.ARCHITECTURES) >= 45
    trained = sum(row[3] == "yes" for row in rows)
    count = f"| {trained} of {len(rows)} kinds |"
    assert count in (ROOT / "docs" / "claims.md").read_text()
    assert all("Remedy: " in row[6] or "save that alone" in row[6] for row in rows if row[6])
