"""An LSTM that guesses the village (of a hundred) of a speaker by phonemes. FAULT at step 0: the last layer is initialised by normal_(std=2.0) (0.02 was meant): the first logits
are many units apart at random, and the first loss lies far above ln(100) = 4.6.
Without Rangewatch: loss 36.6 at step 0 (deviation of the logits 16), 20.7 at step 5, 7.1 at step 20, 1.6 at step 40, 0.39 at the end.
Cause: weight (initialisation). Step: 0. Place: village, the last layer. Right: init / scale of the last layer / weight / std. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["weight"], "step": [0, 20], "place": "village.*", "rank": 0,
          "right": "(?i)init|std|deviation|weight|logit|scale", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2122)
torch.set_num_threads(1)
VILLAGES, PHONEMES = 100, 32
habit = torch.softmax(2.5 * torch.randn(VILLAGES, PHONEMES), 1)


class Dialect(nn.Module):
    def __init__(self):
        super().__init__()
        self.phoneme = nn.Embedding(PHONEMES, 24)
        self.ear = nn.LSTM(24, 64, batch_first=True)
        self.norm = nn.LayerNorm(64)
        self.village = nn.Linear(64, VILLAGES)
        nn.init.normal_(self.village.weight, std=2.0)
        nn.init.zeros_(self.village.bias)

    def forward(self, x):
        return self.village(self.norm(self.ear(self.phoneme(x))[0].mean(1)))


def speakers(n):
    y = torch.randint(0, VILLAGES, (n,))
    return torch.multinomial(habit[y], 16, replacement=True), y


model = Dialect()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = speakers(64)
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (1, 5, 199):
        print(step, loss.item(), "deviation of the logits", logits.std().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
