"""``stretto try``: reward, data and sampling looked at before compute is spent.

    answers    the deliberately made answers to a prompt (right, empty, junk, of another prompt)
    scoring    has the recipe's own judge score them, again in another order and in another process
    rewards    what the scores say about the reward
    data       what can be said about the prompts without judging anything
    sampling   a few groups as the first step would sample them
    learning   what those say about the steps to come
    auditing   all of it, in order
    findings   the values that come out

Nothing is imported here, so that a part can be used without the others.
"""
