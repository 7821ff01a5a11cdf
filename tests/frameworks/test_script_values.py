"""What expressions of a script come to without running it, and what only running tells."""

import ast

import pytest

from simpar.frameworks.script_values import OF_DEVICE, Untold, known_of, truth_of, value_of

UNTOLD = object()


def last(code):
    """What the last expression of a file comes to; :data:`UNTOLD` where only running tells."""
    tree = ast.parse(code)
    *_, expression = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    value = value_of(expression, known_of(tree, {}, {}))
    return UNTOLD if isinstance(value, Untold) and value is not OF_DEVICE else value


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("a = 2\nb = a * 3 + 1\nb", 7), ("a = 1\na = 2\na", 2), ("a = 1\nb = a\na = 2\nb", 1),
        ("org = 'Qwen'\nf'{org}/Qwen3-{4}B'", "Qwen/Qwen3-4B"), ("'a' + 'b'", "ab"), ("{'q_proj'}", ["q_proj"]),
        ("'q,v'.split(',')", ["q", "v"]), ("'A'.lower()", "a"), ("int('4')", 4), ("len([1, 2])", 2), ("max(1, 3)", 3),
        ("big = False\n8 if big else 4", 4), ("size = '7b'\nsize == '7b' and not size.upper() == '7b'", True),
        ("'lora' in ['qlora']", False), ("c = {'batch': 4}\nc['batch']", 4), ("c = [1, 2]\nc[1]", 2),
        ("class C:\n  batch: int = 4\nc = C()\nc.batch", 4), ("class C:\n  batch = 4\nC.batch", 4),
        ("class C:\n  batch: int = field(default=2)\nc = C()\nc.batch", 2),
        ("class C:\n  batch: int = 4\nc = C(batch=8)\nc.batch", 8), ("c = SimpleNamespace(batch=2)\nc.batch", 2),
        ("c = dict(batch=2)\nc['batch']", 2), ("def f(batch=2):\n  return 0\nx = f(batch=4)\nbatch", 4),
        ("def f(batch=2):\n  return 0\nx = f()\nbatch", 2), ("torch.bfloat16", "bfloat16"),
        ("'cuda' if torch.cuda.is_available() else 'cpu'", "cuda"), ("__name__ == '__main__'", True),
        ("torch.cuda.is_bf16_supported()", OF_DEVICE),
    ],
)  # fmt: skip
def test_what_code_writes_out(code, expected):
    """Names, settings, texts, conditions."""
    assert last(code) == expected


@pytest.mark.parametrize(
    "code",
    [
        "a = 1\nif x:\n  a = 2\na", "a = 1\na += 1\na", "for a in (1, 2):\n  pass\na", "a, b = 1, 2\na", "f(1)",
        "c = {'batch': 4}\nc['batch'] = 8\nc['batch']", "c = {'batch': 4}\nc.update(d)\nc['batch']",
        "c = [1]\nc.append(2)\nlen(c)", "class C:\n  batch: int = 4\nc = C(8)\nc.batch",
        "class C:\n  batch: int = 4\nc = C(**d)\nc.batch", "class C:\n  batch: int = 4\nc = C()\nc.batch = 8\nc.batch",
        "class C:\n  batch: int = 4\nc = C()\nsetattr(c, 'batch', 8)\nc.batch", "c = {'a': 1}\nc['b']",
        "def f(batch=2):\n  return 0\nx, y = f(4), f(8)\nbatch", "def f(batch=2):\n  return 0\nx = f(*a)\nbatch",
        "a = 1\na = 2\ndef f():\n  a", "a = a + 1\na", "1 < 'a'", "'{}'.format(x)", "f'{x}'", "int('a')",
        "torch.backends.mps.is_available()", "os.environ['A']", "x and True", "1 if x else 2",
    ],
)  # fmt: skip
def test_what_only_running_tells(code):
    """What may be something else when the line runs."""
    assert last(code) is UNTOLD


def test_values_that_grow_end():
    """Each name is twice the next one."""
    lines = [f"a{at} = [a{at + 1}, a{at + 1}, a{at + 1}, a{at + 1}]" for at in range(18)]
    assert last("\n".join((*lines, "a18 = 1", "a0"))) is UNTOLD


def test_conditions():
    """One that is false whatever the others are; none where the device decides."""
    known = known_of(ast.parse(""), {}, {})
    for code, expected in (("x and False", False), ("x or True", True), ("not x", None), ("None", False),
                           ("torch.cuda.is_bf16_supported()", None), ("not 0", True)):  # fmt: skip
        assert truth_of(ast.parse(code, mode="eval").body, known) is expected
