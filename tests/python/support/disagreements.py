"""One error that every rank must raise, most often of a rank that differs from the others."""


def assert_named(answers, *words, kind="DisagreementError"):
    """One error of this kind on every rank, with all the words."""
    assert None not in answers, answers
    assert len(set(answers)) == 1, answers
    found, message = answers[0]
    assert found == kind, answers[0]
    for word in words:
        assert word in message, (word, message)


def odd(mesh):
    """Whether this is the rank that differs: the last one."""
    return mesh.get_local_rank() == mesh.size() - 1
