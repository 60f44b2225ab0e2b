"""A rank that differs from the others, and the one error that every rank must raise of it."""


def assert_named(answers, *words):
    """One error on every rank, with all the words."""
    assert None not in answers, answers
    assert len(set(answers)) == 1, answers
    kind, message = answers[0]
    assert kind == "DisagreementError", answers[0]
    for word in words:
        assert word in message, (word, message)


def odd(mesh):
    """Whether this is the rank that differs: the last one."""
    return mesh.get_local_rank() == mesh.size() - 1
