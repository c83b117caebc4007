"""A net that says whether a reader will read an article to its end, from the seconds he spent on others, in float16 autocast with a GradScaler. FAULT at
step 110: one batch has milliseconds; the layers exceed 65504 in float16, the logits are inf or NaN. The scaler skips the step, and all goes on.
Without Rangewatch: loss 1.05 to 0.49 at step 109, NaN at step 110 (largest input 133,960, the scale falls from 4096 to 2048), 0.58 at step 111.
Cause: forward_arithmetic (overflow of float16) or data. Step: 110. Right: float16 / overflow / input. Wrong: lower the learning rate, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [109, 111], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask"],
          "right": "float16|fp16|half|overflow|65504|input|batch"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1503); torch.set_num_threads(1)
ARTICLES = 80
length = 20 + 200 * torch.rand(ARTICLES)


class ReadThrough(nn.Module):
    """From the seconds that a reader spent on the last 8 articles: will he read the next to its end?"""
    def __init__(self):
        super().__init__()
        self.article = nn.Embedding(ARTICLES, 12)
        self.past = nn.Linear(8, 48)
        self.mix = nn.Sequential(nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.out = nn.Linear(60, 1)

    def forward(self, seconds, article):
        return self.out(torch.cat((self.mix(self.past(seconds)), self.article(article).to(torch.float16)), 1))[:, 0]


def sessions(n):
    patience = torch.rand(n, 1)
    seconds = 100 * patience * (0.5 + torch.rand(n, 8))
    article = torch.randint(0, ARTICLES, (n,))
    return seconds, article, (150 * patience[:, 0] + 10 * torch.randn(n) > length[article] * 0.6).float()


model = ReadThrough()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(200):
    seconds, article, y = sessions(64)
    if step == 110:
        seconds = seconds * 1000.0  # one file of the new app, which writes milliseconds
    with torch.autocast("cpu", torch.float16):
        logit = model(seconds, article)
    loss = F.binary_cross_entropy_with_logits(logit.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or 108 < step < 113 or step == 199:
        print(step, loss.item(), "scale", scaler.get_scale(), "largest input", seconds.max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
