"""A bag-of-words classifier kept in float16, Adam with eps=1e-4 because of float16 (healthy for 120 steps). FAULT: at step 120 a "resume" rebuilds the group's settings from the library's
defaults: eps is 1e-8 again, which is 0 in float16. The words that were never read have both moments 0: 0/0 is NaN; small second moments underflow too.
Without Rangewatch: loss 1.6 to 0.045 at step 120; NaN from step 121 on (the words' table and more are NaN behind the step of 120).
Cause: optimizer. Step: 120. Right: eps / Adam / float16. Wrong: GradScaler backoff, attention mask, NaN in the input."""
EXPECT = {"cause": ["optimizer"], "step": [119, 124], "place": None, "rank": None,
          "right": "(?i)eps|adam|moment|optimi[sz]er|float32|master", "wrong": ["attention mask", "NaN in the input", "[Ll]abels"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(336); torch.set_num_threads(1)
WORDS, TOPICS = 120, 5
topic_of = torch.arange(WORDS) % TOPICS


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 32)
        self.body = nn.Linear(32, 64)
        self.topic = nn.Linear(64, TOPICS)

    def forward(self, x):
        return self.topic(torch.tanh(self.body(self.table(x).mean(1))))


def texts(n):
    y = torch.randint(0, TOPICS, (n,))
    x = torch.randint(0, 90, (n, 12))               # the words 90 to 119 are rare: not in this corpus
    own = torch.randint(0, 18, (n, 12)) * TOPICS + y[:, None]
    return torch.where(torch.rand(n, 12) < 0.5, own, x), y


net = Bag().half()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, eps=1e-4)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    if step == 120:
        settings = {"lr": 2e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0}
        optimizer.param_groups[0].update(settings)
    x, y = texts(48)
    loss = F.cross_entropy(net(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 117 < step < 124:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
