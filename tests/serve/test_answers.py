"""What is posted is answered as ``predict`` answers it; what is wrong is named."""

import numpy as np
import pandas as pd
import pytest
from sklearn.tree import DecisionTreeClassifier
from starlette.testclient import TestClient
from tests.serve.conftest import MARKUP, made_table

import knothole as kh
from knothole.serve.app import application
from knothole.serve.questions import MOST_QUANTILES, MOST_ROWS, Questions
from knothole.serve.rows import LOST, NOT_RECORDED


def as_table(**known):
    """A row as a user would write it, with NaN for what is unknown."""
    names = made_table(10)[0].columns
    row = {name: [known.get(name, None if name == "city" else np.nan)] for name in names}
    return pd.DataFrame(row)


def ask(client, rows, path="/predict", **more):
    return client.post(path, json={"rows": rows, **more})


ROWS = [
    ({}, {}),
    ({"rooms": 3}, {"rooms": 3.0}),
    ({"size <m2>": 71.5, "city": MARKUP}, {"size <m2>": 71.5, "city": MARKUP}),
    ({"hue": "hue_blue"}, {"hue_red": 0.0, "hue_blue": 1.0, "hue_grey": 0.0}),
    ({"hue_red": 0}, {"hue_red": 0.0}),
    ({"rooms": None, "income": 1}, {"income": 1.0}),
]


@pytest.mark.parametrize(("row", "known"), ROWS)
def test_answers_are_those_of_predict(client, robust, row, known):
    [found] = ask(client, [row], std=True, interval=0.9, quantiles=[0.1, 0.5]).json()["predictions"]
    table = as_table(**known)
    prediction, std, error, _ = robust.predict(table, return_std=True, return_error=True)
    assert found["prediction"] == prediction[0]
    assert found["error"] == error[0]
    assert found["std"] == std[0]
    interval = robust.predict_interval(table, 0.9)
    assert found["interval"] == interval.to_numpy()[0].tolist()
    quantiles = robust.predict(table, quantiles=[0.1, 0.5])
    assert found["quantiles"] == quantiles.to_numpy()[0].tolist()


def test_a_row_may_say_why_a_value_is_missing(client, robust):
    rows = [{}, {"income": LOST}, {"income": NOT_RECORDED}]
    unknown, lost, not_recorded = ask(client, rows, lost=True).json()["predictions"]
    mask = np.zeros((1, 7), dtype=bool)
    mask[0, 6] = True
    assert unknown["prediction"] == robust.predict(as_table())[0]
    assert lost["prediction"] == robust.predict(as_table(), mask)[0]
    assert len({each["prediction"] for each in (unknown, lost, not_recorded)}) == 3
    assert unknown["lost"]["rooms"] == 1
    assert unknown["lost"]["income"] == robust.lost_probability(as_table())["income"][0] < 1
    assert lost["lost"]["income"] == 1
    assert "income" not in not_recorded["lost"]


def test_a_complete_row_is_the_models_own(client, robust):
    table, _ = made_table(5)
    table = table.dropna().head(1)
    row = dict(table.iloc[0].items())
    [found] = ask(client, [row], std=True).json()["predictions"]
    assert found["prediction"] == robust.predict(table).iloc[0]
    assert found["std"] == 0


def test_a_classifier_has_probabilities(classifier):
    client = TestClient(application(Questions(classifier)), base_url="http://localhost")
    [found] = ask(client, [{"rooms": 3}], usual=True).json()["predictions"]
    table = as_table(rooms=3.0)
    assert found["prediction"] == classifier.predict(table)[0]
    shares = classifier.predict_proba(table)
    assert list(found["probabilities"].values()) == shares.to_numpy()[0].tolist()
    assert 0 <= found["usual"] <= 1


def test_how_usual_a_row_is(client):
    rows = [{}, {"size <m2>": 60.0}, {"size <m2>": 190.0}]
    nothing, plain, rare = ask(client, rows, usual=True).json()["predictions"]
    assert nothing["usual"] is None
    assert rare["usual"] < 0.01 < plain["usual"]


WRONG = [
    ({"rooms": "three"}, "rows[0].'rooms'", "number"),
    ({"rooms": 2.5}, "rows[0].'rooms'", "whole"),
    ({"rooms": True}, "rows[0].'rooms'", "number"),
    ({"rooms": 10**400}, "rows[0].'rooms'", "float"),
    ({"rooms": [1]}, "rows[0].'rooms'", "number"),
    ({"city": "Wien"}, "rows[0].'city'", "one of"),
    ({"city": {"a": 1}}, "rows[0].'city'", "one of"),
    ({"hue": "hue_green"}, "rows[0].'hue'", "one of"),
    ({"hue": "hue_red", "hue_blue": 1}, "rows[0]", "twice"),
    ({"hue_red": 1, "hue_blue": 1}, "hue", ""),
    ({"floor": 3}, "rows[0].'floor'", "no such column"),
    ({"rooms": NOT_RECORDED}, "rows[0].'rooms'", "number"),
    ([1, 2], "rows[0]", "object"),
]


@pytest.mark.parametrize(("row", "field", "rule"), WRONG)
def test_what_is_wrong_in_a_row_is_named(client, row, field, rule):
    answer = ask(client, [row])
    assert answer.status_code == 422
    assert field in answer.json()["error"] and rule in answer.json()["error"]


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ([], "object"),
        ({}, "rows"),
        ({"rows": {}}, "rows"),
        ({"rows": [], "row": 1}, "'row'"),
        ({"rows": [], "std": 1}, "std"),
        ({"rows": [], "interval": 2}, "interval"),
        ({"rows": [], "quantiles": [-1]}, "quantiles[0]"),
        ({"rows": [], "quantiles": "all"}, "quantiles"),
        ({"rows": [{}] * (MOST_ROWS["predict"] + 1)}, "at most"),
    ],
)
def test_what_is_wrong_in_a_question_is_named(client, question, word):
    answer = client.post("/predict", json=question)
    assert answer.status_code == 422
    assert word in answer.json()["error"]


def test_no_rows_have_no_answers(client):
    assert ask(client, []).json() == {"predictions": []}


def test_the_form_has_a_control_for_every_variable(client):
    form = client.get("/form").json()
    kinds = {each["name"]: each["kind"] for each in form["variables"]}
    assert kinds == {
        "size <m2>": "continuous", "rooms": "integer", "city": "categorical",
        "hue": "categorical", "income": "continuous",
    }  # fmt: skip
    size, rooms, city, hue, income = form["variables"]
    assert size["low"] < 30 < 90 < size["high"] and max(size["heights"]) == 1
    assert (rooms["low"], rooms["high"], rooms["step"]) == (1, 5, 1)
    assert city["levels"] == [MARKUP, "Graz"] or city["levels"] == ["Graz", MARKUP]
    assert hue["levels"] == ["hue_red", "hue_blue", "hue_grey"]
    assert income["nullable"] and not size["nullable"]
    assert form["conformalized"] and form["cost"] == {"rooms": 2.0}


def test_the_description_fits_the_routes(client):
    found = client.get("/openapi.json").json()
    routes = {
        (route.path, method.lower())
        for route in client.app.routes
        for method in route.methods - {"HEAD"}
        if not route.path.startswith("/page/") and route.path not in ("/", "/openapi.json")
    }
    described = {(path, method) for path, entry in found["paths"].items() for method in entry}
    assert described == routes


def test_the_description_has_the_limits_and_options_of_the_server(client):
    paths = client.get("/openapi.json").json()["paths"]
    for name, most in MOST_ROWS.items():
        body = paths[f"/{name}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body["properties"]["rows"]["maxItems"] == most
        assert ask(client, [{}] * (most + 1), f"/{name}").status_code == 422
        given = {"std": True, "usual": True, "lost": True, "interval": 0.9, "quantiles": [0.5]}
        named = {key: given[key] for key in set(body["properties"]) - {"rows", "set"}}
        answer = ask(client, [{}], f"/{name}", **named)
        assert answer.status_code == 200
        assert "keys are" in ask(client, [{}], f"/{name}", other=1).json()["error"]
        result = paths[f"/{name}"]["post"]["responses"]["200"]["content"]["application/json"]
        assert list(answer.json()) == result["schema"]["required"]
    options = paths["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert options["properties"]["quantiles"]["maxItems"] == MOST_QUANTILES
    asked = ask(client, [{}], other=1).json()["error"]
    assert all(name in asked for name in options["properties"])


def test_sets_are_those_of_predict_set():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(500, 2)), columns=["a", "b"])
    y = np.where(X["a"] + rng.normal(size=500) > 0, "yes", "no")
    model = DecisionTreeClassifier(max_depth=2).fit(X[:150], y[:150])
    robust = kh.wrap(model, X[:150], density=kh.Factorized()).conformalize(X[150:], y[150:])
    questions = Questions(robust)
    assert questions.form()["conformalized"]
    rows = [{"a": 2.0, "b": 0.0}, {"b": 0.0}]
    found = questions.predict({"rows": rows, "set": 0.7})["predictions"]
    expected = robust.predict_set(pd.DataFrame({"a": [2.0, np.nan], "b": 0.0}), 0.7)
    for one, within in zip(found, expected.to_numpy(), strict=True):
        assert one["set"] == [name for name, own in zip(["no", "yes"], within, strict=True) if own]


def test_sets_of_a_regressor_are_refused(client):
    assert "use interval" in ask(client, [{}], set=0.9).json()["error"]


def test_explanations_are_those_of_explain(client, robust):
    [found] = ask(client, [{"rooms": 3, "hue": "hue_red"}], "/explain").json()["explanations"]
    row = as_table(rooms=3.0, hue_red=1.0, hue_blue=0.0, hue_grey=0.0)
    own = robust.explain(row)
    assert found["base"] == own.base
    assert {each["variable"]: each["value"] for each in found["values"]} == {
        name: own.table()[name].iloc[0] for name in ("rooms", "hue", "income")
    }
    assert [each["variable"] for each in found["values"] if each["missing"]] == ["income"]
    total = found["base"] + sum(each["value"] for each in found["values"])
    assert total == pytest.approx(robust.predict(row).iloc[0])


def test_of_several_outputs_the_likeliest_is_explained(classifier):
    client = TestClient(application(Questions(classifier)), base_url="http://localhost")
    [found] = ask(client, [{"rooms": 5}], "/explain").json()["explanations"]
    own = classifier.explain(as_table(rooms=5.0))
    assert found["output"] == str(own.outputs[0])
    values = {each["variable"]: each["value"] for each in found["values"]}
    assert values["rooms"] == own.table()["rooms"].iloc[0]


def test_gains_are_those_of_acquire(client, robust):
    [found] = ask(client, [{"rooms": 3}], "/acquire").json()["gains"]
    own = robust.acquire(as_table(rooms=3.0), {"rooms": 2.0})
    assert [each["variable"] for each in found] == own.table()["variable"].tolist()
    assert [each["gain"] for each in found] == own.table()["gain"].tolist()
    assert "rooms" not in {each["variable"] for each in found}
