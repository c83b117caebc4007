"""A compiled siamese net that tells whether two signatures are by one hand, contrastive loss on the distance of the embeddings. FAULT at step 110: the
pairs are no longer drawn from distinct files, so that a pair may be one file twice: the distance is sqrt(0), its gradient is inf times 0, NaN.
Without Rangewatch: loss 0.46 to 0.11 at step 109, 0.12 at 111, NaN from 112 to the end (the first pair of equals is in step 111).
Cause: backward_arithmetic (sqrt at 0), eps, data (the equal pair). Step: 110 to 112. Right: eps / sqrt / norm / distance. Wrong: learning rate, mask."""
EXPECT = {"cause": ["backward_arithmetic", "eps", "data"], "step": [109, 120], "place": None, "rank": None,
          "right": "(?i)eps|sqrt|norm|distance|zero|clamp|duplicate|identical|anomaly|NaN", "wrong": ["attention mask", "GradScaler", "all_?reduce"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2904); torch.set_num_threads(1)
hands = torch.randn(12, 40)
files = hands.repeat_interleave(30, 0) + 0.9 * torch.randn(360, 40)
writer = torch.arange(12).repeat_interleave(30)


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(40, 96), nn.Linear(96, 64), nn.Linear(64, 16)

    def forward(self, x):
        return self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))


def sample_pairs(n, distinct):
    a = torch.randint(0, 360, (n,))
    b = torch.where(torch.rand(n) < 0.5, writer[a] * 30 + torch.randint(0, 30, (n,)), torch.randint(0, 360, (n,)))
    if distinct:
        b = torch.where(a == b, (a + 30) % 360, b)
    return files[a], files[b], (writer[a] == writer[b]).float()


def contrastive(za, zb, same):
    d = (za - zb).pow(2).sum(1).sqrt()
    return (same * d.pow(2) + (1 - same) * (1.5 - d).clamp(min=0).pow(2)).mean()


embed = Embed()
compiled = torch.compile(embed, backend="aot_eager")
optimizer = torch.optim.AdamW(embed.parameters(), lr=1e-3)
handle = rangewatch.attach(embed, optimizer)
for step in range(180):
    xa, xb, same = sample_pairs(64, distinct=step < 110)
    loss = contrastive(compiled(xa), compiled(xb), same)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in range(109, 116) or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
