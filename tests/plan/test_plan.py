"""The plan as a file: what may be written, what comes back, and how mistakes are reported."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar import files
from simpar.errors import UserError
from simpar.layout.layout import Layout
from simpar.plan.choices import SECTIONS
from simpar.plan.flat import SECTION_OF, SYNONYMS
from simpar.plan.mesh import AXES, Mesh
from simpar.plan.plan import Plan

PLANS = st.builds(
    Plan,
    tp=st.sampled_from([1, 2, 8]),
    pp=st.sampled_from([1, 4]),
    dp=st.none() | st.integers(1, 64),
    micro_batch=st.integers(1, 4),
    zero=st.integers(0, 3),
    schedule=st.sampled_from([None, "1f1b", "zb-v", "interleaved"]),
    bucket_bytes=st.none() | st.floats(1, 1e12),
    recompute=st.sampled_from(["none", "full", "selective", "every:3"]),
    sequence_parallel=st.sampled_from([None, True, False]),
    rank_order=st.permutations(AXES).map("-".join),
    search=st.none() | st.just({"fit_probability": 0.75}),
    predicted=st.none() | st.just({"step_time_s": 1.25}),
)


def read(tmp_path, text, name="plan.yaml"):
    """A plan from a file with the given text."""
    path = tmp_path / name
    path.write_text(text)
    return Plan.load(path)


def complaint(tmp_path, text):
    """What is said about a plan file, without the path."""
    with pytest.raises(UserError) as caught:
        read(tmp_path, text)
    return str(caught.value).replace(str(tmp_path), "")


CHANGES = st.dictionaries(st.sampled_from(["tp", "dp", "zero", "recompute", "hsdp"]), st.just(None), max_size=3).map(
    lambda keys: {key: {"tp": 4, "dp": 2, "zero": 1, "recompute": "full", "hsdp": 1}[key] for key in keys}
)


def stated(plan):
    """What a plan states, by section and field, rather than leaves at its default."""
    return {(name, field) for name in SECTIONS for field in getattr(plan, name).model_fields_set} | {
        ("", name) for name in plan.model_fields_set
    }


@settings(max_examples=40)
@given(PLANS, CHANGES)
def test_other_values_state_nothing_else(plan, changes):
    """What a plan leaves open is open in a copy with other values, which has all others as before."""
    copy = plan.with_values(**changes)
    new = {(SECTION_OF[key], key) for key in changes} | {("", SECTION_OF[key]) for key in changes}
    assert stated(copy) == stated(plan) | new
    assert copy == Plan(**{**plan.model_dump(), **changes})
    mesh = Mesh(cp=2)
    assert plan.with_values(mesh=mesh).mesh == mesh
    assert mesh.model_fields_set == {"cp"}


@settings(max_examples=40)
@given(PLANS)
def test_saving_and_loading_keeps_every_byte(tmp_path_factory, plan):
    """A saved plan loads as an equal one, which saves as the same bytes; as YAML, too."""
    folder = tmp_path_factory.mktemp("plan")
    plan.save(folder / "a.json")
    again = Plan.load(folder / "a.json")
    again.save(folder / "b.yaml")
    assert again == plan
    assert (folder / "a.json").read_bytes() == (folder / "b.yaml").read_bytes()
    assert Plan.load(folder / "b.yaml") == plan


def test_flat_and_nested_mean_the_same(tmp_path):
    """Flat keys, sections, synonyms and a Mesh all give the same plan."""
    plan = Plan(tp=8, pp=4, vpp=2, zero=1, micro_batch=2, precision="fp16")
    nested = """
        mesh: {tp: 8, pp: 4}
        pipeline: {vpp: 2}
        data_parallel: {zero: 1}
        numerics: {precision: fp16}
        micro_batch: 2
    """
    synonyms = """
        {tensor_model_parallel_size: 8, pipeline_parallel_degree: 4, virtual_pipeline_parallel_size: 2,
         zero_stage: 1, micro_batch_size: 2, precision: fp16}
    """
    assert read(tmp_path, nested) == read(tmp_path, synonyms) == plan
    assert Plan(mesh=Mesh(tp=8, pp=4), vpp=2, zero=1, micro_batch=2, precision="fp16") == plan


def test_a_flat_key_wins_over_its_section():
    """Flags are laid over a file as flat keys."""
    plan = Plan.model_validate({"mesh": {"tp": 2, "pp": 2}, "tp": 4, "pipeline": {"vpp": 2}, "vpp": 1})
    assert (plan.mesh.tp, plan.mesh.pp, plan.pipeline.vpp) == (4, 2, 1)
    assert plan.with_values(tp=8, zero=3).mesh == Mesh(tp=8, pp=2)


def test_the_key_order_of_a_mesh_is_its_rank_order(tmp_path):
    """A full mapping sets the order, a partial one in default order keeps it, flat keys never count."""
    assert read(tmp_path, "mesh: {dp: 2, tp: 4, cp: 1, pp: 2}").mesh.order == ("dp", "tp", "cp", "pp")
    assert read(tmp_path, "mesh: {tp: 4, pp: 2}").mesh.order == AXES
    assert Plan(pp=2, tp=4).mesh.order == AXES
    assert Plan(rank_order="tp-cp-ep-pp-dp").mesh.order == ("tp", "cp", "pp", "dp")
    saved = Plan(rank_order="pp-dp-cp-tp").model_dump(mode="json")
    assert list(saved["mesh"]) == ["pp", "dp", "cp", "tp", "ep", "etp"]
    assert "name all of tp, cp, dp, pp" in complaint(tmp_path, "mesh: {pp: 4, tp: 2}")


def test_the_schedule_follows_from_the_chunks_and_the_chunks_from_the_schedule():
    """Without a name it is 1f1b, or interleaved with chunks; without vpp it is the natural number."""
    assert (Plan().schedule, Plan(vpp=2).schedule) == ("1f1b", "interleaved")
    assert (Plan(schedule="zb-v").pipeline.vpp, Plan(schedule="ZBVZeroBubble").schedule) == (2, "zb-v")
    assert Plan(schedule="zb-v", vpp=3).pipeline.vpp == 3
    assert Plan(actions="0F0,0B0").schedule == "custom"


def test_buckets_have_units(tmp_path):
    """A bucket size in a file needs its unit; it is saved in bytes and read again."""
    assert read(tmp_path, "bucket_bytes: 25 MiB").data_parallel.bucket_bytes == 25 * 2**20
    assert "bucket_bytes = 100: needs a unit" in complaint(tmp_path, "bucket_bytes: 100")
    assert Plan(bucket_bytes=1e6).model_dump()["data_parallel"]["bucket_bytes"] == "1000000 B"


def test_microbatches():
    """A pipeline runs global batch / (dp x micro-batch) microbatches."""
    assert Layout.of(Plan(dp=4, micro_batch=2)).num_microbatches(64) == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp: 1\nzero: 4", "/plan.yaml:2: zero = 4: allowed: 0, 1, 2 or 3"),
        ("micro_batch_size: 0", "/plan.yaml:1: micro_batch_size = 0: allowed: greater than or equal to 1"),
        ("mesh:\n  tp: 0", "/plan.yaml:2: mesh.tp = 0: allowed: greater than or equal to 1"),
        ("tpp: 4", "/plan.yaml:1: tpp = 4: is not a key of a plan; did you mean 'tp'?"),
        ("pipeline:\n  schedul: 1f1b", "/plan.yaml:2: unknown key pipeline.schedul; did you mean 'schedule'?"),
        ("tp: 2\nschedule: gpip", "/plan.yaml:2: schedule = 'gpip': is not a schedule; did you mean 'gpipe'?"),
        ("recompute: every:0", "/plan.yaml:1: recompute = 'every:0': allowed: none, selective, full, optimal, every:C"),
        ("rank_order: tp-dp", "/plan.yaml:1: rank_order = ('tp', 'dp'): the rank order names each of"),
        ("function-: 1", "/plan.yaml:1: function- = 1: is not a key of a plan"),
        ("pipeline: {function-: 1}", "/plan.yaml:1: unknown key pipeline.function-"),
        ("search: {fit_probability: 0.9, stack: x}", "unknown key search.stack; allowed: fit_probability"),
        ("search: {fit_probability: 1.5}", "/plan.yaml:1: search.fit_probability = 1.5: "),
        ("version: 2", "/plan.yaml:1: version = 2: plans of another version cannot be read; allowed: '1'"),
        ("training: {seq_len: 0}", "/plan.yaml:1: training.seq_len = 0: allowed: greater than or equal to 1"),
        ("tp: 2\ntensor_parallel_size: 4", "tp = 2 and tensor_parallel_size = 4 mean the same; give one"),
        ("micro_batch: 2\nmicro_batch_size: 4", "micro_batch_size = 4 mean the same; give one"),
        ("pipeline: 1f1b\nvpp: 2", "'1f1b' stands where a section with fields is needed"),
        ("schedule: custom", "schedule = 'custom' needs an action table"),
        ("{schedule: gpipe, actions: '0F0,0B0'}", "schedule = 'gpipe' and an action table: give one"),
        ("layers: [2, -1]", "layers.1 = -1: allowed: greater than or equal to 0"),
        ("- 1", "document = [1]: is not a mapping; allowed: {tp: ..., "),
    ],
)
def test_mistakes_are_reported_where_they_were_written(tmp_path, text, said):
    """A mistake gives one line: file, line, the key as the user wrote it, the value, and what is allowed."""
    found = complaint(tmp_path, text)
    assert said in found
    assert "\n" not in found


def test_python_gets_the_same_words():
    """Built in Python, a wrong plan names the same rule."""
    with pytest.raises(UserError, match="did you mean 'schedule'"):
        Plan(schedul="1f1b")


def test_the_schema_knows_sections_and_flat_keys():
    """The JSON Schema has every flat key with its section's rule, and refuses unknown keys."""
    schema = Plan.model_json_schema()
    assert set(SECTION_OF) | {"mesh", "pipeline", "version", "rank_order"} <= set(schema["properties"])
    assert schema["properties"]["zero"]["enum"] == [0, 1, 2, 3]
    assert schema["additionalProperties"] is False
    json.dumps(schema)


def test_synonyms_lead_to_keys():
    """Every other tool's name stands for a key of the plan, and none hides one."""
    assert set(SYNONYMS.values()) <= {*SECTION_OF, "micro_batch"}
    assert not set(SYNONYMS) & {*SECTION_OF, *Plan.model_fields}


def test_every_section_is_a_field():
    """Each flat key is a field of the section it is moved to."""
    for flat, section in SECTION_OF.items():
        assert flat in Plan.model_fields[section].annotation.model_fields


@settings(max_examples=40)
@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda x: st.dictionaries(st.text(max_size=9), x)))
def test_reading_never_breaks(data):
    """Any mapping is a plan or a UserError."""
    with contextlib.suppress(UserError):
        files.parse(Plan, data if isinstance(data, dict) else {"mesh": data})


@pytest.mark.parametrize("nested", [False, True])
def test_keys_of_removed_products_keep_the_value_that_old_files_have(nested):
    """Plan files of earlier releases name them; another value is refused by name, and none is written."""

    def as_written(keys):
        return {"tensor_parallel": keys} if nested else keys

    old = files.parse(Plan, as_written({"tp_method": "1d", "tp_depth": 1}), source="old.json")
    assert old == Plan()
    assert "tp_method" not in str(old.model_dump())
    for keys in ({"tp_method": "2d"}, {"tp_method": "1d", "tp_depth": 2}):
        with pytest.raises(UserError, match=r"^old.json: tp_(method|depth) = '?2d?'?: .* was removed; allowed: 1"):
            files.parse(Plan, as_written(keys), source="old.json")


@given(PLANS)
def test_flat_keys_are_read_as_they_are_written(plan):
    """Every one of them is an attribute; those that a section has under another value say what is run."""
    for key, section in SECTION_OF.items():
        if key not in ("schedule", "ulysses"):  # left open, they say what follows
            assert getattr(plan, key) == getattr(getattr(plan, section), key)
        assert key in dir(plan)


def test_an_unknown_attribute_is_answered_with_the_nearest():
    """As an unknown key of a file is."""
    assert not hasattr(Plan(), "_repr_html_")
    with pytest.raises(AttributeError, match=r"has no attribute 'recomput'; did you mean 'recompute'\?$"):
        _ = Plan().recomput


@given(PLANS)
def test_its_string_is_the_call_that_makes_it(plan):
    """In one line, without what the plan was made for."""
    assert "\n" not in repr(plan)
    assert eval(repr(plan), {"Plan": Plan}).flat_values() == plan.flat_values()
