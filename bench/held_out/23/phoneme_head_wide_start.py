"""A convolutional net over time with a linear head that names 40 phonemes per frame. FAULT at step 0: the head is drawn with nn.init.normal_(std=2.0) instead
of 0.02; the logits begin with a deviation of about 20 and the loss far above log(40) = 3.7.
Without Rangewatch: loss 46.6 at step 0, 73.8 at step 20, 1.3 at step 60, 0.09 at step 179; with 0.02 it is 3.73 at step 0, 0.07 at step 20 and
0.0017 at step 179.
Causes: weight (initialisation). Right: init / std / deviation / logits. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["weight"], "step": [0, 60], "place": "(head.*)?", "rank": 0,
          "right": "(?i)init|std|deviation|logit|scale", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2324); torch.set_num_threads(1)
PHONEMES = 40
voice = torch.randn(PHONEMES, 20)


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(20, 96, 5, padding=2), nn.GELU(), nn.Conv1d(96, 96, 3, padding=1), nn.GELU())
        self.norm = nn.LayerNorm(96)
        self.head = nn.Linear(96, PHONEMES)
        nn.init.normal_(self.head.weight, std=2.0)

    def forward(self, x):
        return self.head(self.norm(self.body(x).mT))


model = Recogniser()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    y = torch.randint(0, PHONEMES, (12, 10)).repeat_interleave(3, 1)
    x = voice[y].mT + 0.5 * torch.randn(12, 20, 30)
    logits = model(x)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), "deviation of the logits", logits.std().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
