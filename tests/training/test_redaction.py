"""Secrets of the environment and of URLs never pass; everything else does unchanged."""

import pytest

from spanjax.training.redaction import holds_credentials, redacted


def test_secrets_of_the_environment_are_hidden_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hushhush")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hush/hush more")
    monkeypatch.setenv("HOST_NAME", "plainword")
    told = {"a": ["key hushhush", {"b": "hushhush"}], "c": 3, "d": None, "e": ("hush%2Fhush%20more", "plainword")}
    assert redacted(told) == {"a": ["key ***", {"b": "***"}], "c": 3, "d": None, "e": ["***", "plainword"]}


def test_names_of_classes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "Tracking")
    assert redacted({"class": "Tracking", "name": "Tracking"}) == {"class": "Tracking", "name": "***"}


def test_users_and_passwords_of_urls_are_hidden() -> None:
    text = "no answer from https://me:pass@host:5000/api?a=b@c and postgresql://u:p@db/x; write to me@example.com"
    shown = "no answer from https://***@host:5000/api?a=b@c and postgresql://***@db/x; write to me@example.com"
    assert redacted(text) == shown


def test_a_short_value_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_KEY", "1")
    assert redacted("step 1 of 11") == "step 1 of 11"


@pytest.mark.parametrize(
    ("uri", "refused"),
    [
        ("https://me:pass@host", True),
        ("https://token@host:5000/x", True),
        ("postgresql://host/db?user=me&password=x", True),
        ("https://host/?api_key=x", True),
        ("https://host:5000/a@b", False),
        ("file:///runs/mlruns", False),
        ("databricks://profile", False),
        ("", False),
    ],
)
def test_credentials_in_a_uri_are_seen(uri: str, refused: bool) -> None:
    assert holds_credentials(uri) is refused
