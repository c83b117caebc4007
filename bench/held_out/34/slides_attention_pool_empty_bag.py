"""Multiple-instance learning: bags of up to ten tissue tiles, pooled by gated attention over the tiles that are there (AdamW). FAULT at step 130: from there on some slides have no tile that passed
the quality filter: the mask of such a bag is all False, all scores are -inf, softmax gives NaN.
Without Rangewatch: loss 0.68 to 0.16..0.34 at steps 100 to 129, NaN from step 130 on.
Cause: mask (all masked; the empty bag comes from the data). Step: 130. Right: mask / empty row / -inf / softmax. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["mask"], "step": [129, 134], "place": None, "rank": None,
          "right": "(?i)mask|-inf|empty|softmax", "wrong": ["[Ll]ower the learning rate", "GradScaler"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3412); torch.set_num_threads(1)
TILES, F = 10, 12
sick = torch.randn(F)


def slides(n, with_empty):
    tiles = torch.randn(n, TILES, F)
    y = torch.randint(0, 2, (n,))
    where = torch.randint(0, 3, (n,))
    tiles[torch.arange(n), where] += 1.2 * y[:, None] * sick
    count = torch.randint(3, TILES + 1, (n,))
    if with_empty:
        count[3] = 0
    return tiles, torch.arange(TILES) < count[:, None], y.float()


class GatedPool(nn.Module):
    def __init__(self):
        super().__init__()
        self.tile = nn.Linear(F, 32)
        self.value, self.gate = nn.Linear(32, 24), nn.Linear(32, 24)
        self.score = nn.Linear(24, 1)
        self.verdict = nn.Linear(32, 1)

    def forward(self, tiles, there):
        h = nn.functional.silu(self.tile(tiles))
        s = self.score(self.value(h).tanh() * self.gate(h).sigmoid())[..., 0]
        w = s.masked_fill(~there, float("-inf")).softmax(1)
        return self.verdict((w[..., None] * h).sum(1))[:, 0]


model = GatedPool()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    tiles, there, y = slides(32, step >= 130)
    loss = nn.functional.binary_cross_entropy_with_logits(model(tiles, there), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 133 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
