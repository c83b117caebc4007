"""A net that foretells the next key from the last three, with a slow average of the weights (0.995) for the evaluation. FAULT at step 110: the average is put into the model for
the evaluation, and the weights of the training are not put back (the copy was kept as references, not clones): training goes on from the average.
Without Rangewatch: loss 3.33 to 1.54 at step 109, 2.86 at step 110, 1.34 at the end.
Cause: weight, eval or optimizer. Step: 110. Right: restore / average / EMA / overwritten outside. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["weight", "eval", "optimizer"], "step": [109, 113], "place": None, "rank": None,
          "right": "(?i)restor|averag|ema|overwrit|outside|put back|swap|checkpoint|copy|weights (were|was|are) (set|replaced|changed)",
          "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3010); torch.set_num_threads(1)
follow = torch.randint(0, 27, (27, 27))


def keys(n, g=None):
    x = torch.randint(0, 27, (n, 3))
    y = follow[x[:, 2], x[:, 1]]
    return x, torch.where(torch.rand(n) < 0.1, torch.randint(0, 27, (n,)), y)


class Next(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Embedding(27, 24)
        self.mix = nn.Sequential(nn.Linear(72, 256), nn.ReLU(), nn.Linear(256, 27))

    def forward(self, x):
        return self.mix(self.key(x).flatten(1))


net = Next()
optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
handle = rangewatch.attach(net, optimizer)
average = {k: v.clone() for k, v in net.state_dict().items()}


@torch.no_grad()
def evaluate():
    kept = net.state_dict()
    net.load_state_dict(average)
    x, y = keys(512)
    score = F.cross_entropy(net(x), y).item()
    net.load_state_dict(kept)
    return score


for step in range(200):
    if step == 110:
        print("evaluation with the average", evaluate())
    x, y = keys(256)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for k, v in net.state_dict().items():
            average[k].lerp_(v, 0.005)
    if step % 20 == 0 or step in (109, 110, 111, 199):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
