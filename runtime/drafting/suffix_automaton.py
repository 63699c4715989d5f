"""A suffix automaton that grows token by token: every substring seen so far, which tokens followed it, how often.

Source: Blumer et al., The smallest automaton recognizing the subwords of a text (1985), in its online construction:
amortised constant time a token, at most two states a token. States are numbers, the root, the empty string, is 0.
"""

from __future__ import annotations

ROOT = 0


class SuffixAutomaton:
    """A state is the substrings that end at the same places.

    length: of the longest of them. link: the state of its longest suffix that ends elsewhere, too; -1 of the root.
    next: token -> the state of the longest one with that token behind it. count: at how many places it ends; latest:
    the last of these, an index into the tokens. Both are kept for the `depth` longest suffixes of each prefix.
    """

    def __init__(self, depth: int = 16):
        """depth: so many states a token are counted; what repeats one token n times has n of them."""
        self.depth = depth
        self.length, self.link = [0], [-1]
        self.next: list[dict[int, int]] = [{}]
        self.count, self.latest = [0], [-1]
        self.last = ROOT  # the state of everything read
        self.size = 0  # tokens read

    @property
    def match(self) -> int:
        """The state of the longest suffix of everything read that was there before; the root where there is none."""
        return max(self.link[self.last], ROOT)

    def append(self, token: int) -> None:
        """Read one more token."""
        length, link, following = self.length, self.link, self.next
        new = self._state(self.length[self.last] + 1, {})
        state = self.last
        while state != -1 and token not in following[state]:
            following[state][token] = new
            state = link[state]
        if state == -1:
            link[new] = ROOT
        else:
            found = following[state][token]
            if length[found] == length[state] + 1:
                link[new] = found
            else:
                # Its shorter strings end here, too, and are a state of their own from now on.
                apart = self._state(length[state] + 1, dict(following[found]))
                link[apart], link[found], link[new] = link[found], apart, apart
                self.count[apart], self.latest[apart] = self.count[found], self.latest[found]
                while state != -1 and following[state].get(token) == found:
                    following[state][token] = apart
                    state = link[state]
        self.last = new
        self._count(new)
        self.size += 1

    def _state(self, length: int, following: dict[int, int]) -> int:
        self.length.append(length)
        self.link.append(-1)
        self.next.append(following)
        self.count.append(0)
        self.latest.append(-1)
        return len(self.length) - 1

    def _count(self, state: int) -> None:
        """Everything read ends here once more, and so do its suffixes."""
        for _ in range(self.depth):
            if state == ROOT:
                return
            self.count[state] += 1
            self.latest[state] = self.size
            state = self.link[state]
