"""Which sign stands somewhere in a noisy picture of 4 x 4 tiles: a scorer looks at the tiles, the two best are read by a small reader, whose answers are averaged. Adam, plain loop.
FAULT at step 0: of `scores.topk(2)` only the indices are used; the attention of the scorer never gets into the loss as a number, so no gradient reaches the scorer and it chooses tiles as it was drawn at random.
Without Rangewatch: the gradient of the scorer is None at every step; loss 1.57 to some 0.75 and no further, 64 % right.
Cause: no_gradient (the scorer) / backward_arithmetic (cut by the choice of indices). Step: from 0. Right: multiply by the softmax of the scores, straight-through, REINFORCE. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["no_gradient", "backward_arithmetic"], "step": [0, 20], "place": r"(?i)scorer", "rank": None,
          "right": r"(?i)gradient|detach|no_grad|argmax|topk|indices|loss|graph|straight", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(77)
torch.set_num_threads(1)
SIGNS = (torch.rand(5, 6, 6) < 0.5).float() * 2


class Glimpse(nn.Module):
    def __init__(self):
        super().__init__()
        self.scorer = nn.Sequential(nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 1))
        self.reader = nn.Sequential(nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 5))

    def forward(self, picture):
        tiles = picture.unfold(1, 6, 6).unfold(2, 6, 6).reshape(len(picture), 16, 36)
        scores = self.scorer(tiles)[..., 0]
        best = scores.topk(2, dim=1).indices
        seen = tiles.gather(1, best[..., None].expand(-1, -1, 36))
        return self.reader(seen).mean(1)


def pictures(n):
    sign = torch.randint(0, 5, (n,))
    picture = 0.4 * torch.randn(n, 24, 24)
    at = torch.randint(0, 4, (n, 2)) * 6
    for i in range(n):
        r, c = at[i].tolist()
        picture[i, r:r + 6, c:c + 6] += SIGNS[sign[i]]
    return picture, sign


model = Glimpse()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    picture, sign = pictures(64)
    answer = model(picture)
    loss = nn.functional.cross_entropy(answer, sign)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or step == 299:
        print(f"step {step} loss {loss.item():.4f} right {(answer.argmax(1) == sign).float().mean().item():.2f} scorer's gradient {model.scorer[0].weight.grad}", flush=True)
handle.detach()
