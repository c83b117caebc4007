"""A sequence-to-sequence GRU that turns a row of digits around, with slow weights (an exponential average, 0.995) for the evaluation every 60 steps: they are
copied in, the accuracy is taken, the fast ones are copied back. FAULT at step 120: the evaluation at this step returns early and the fast weights are not
copied back; the training goes on from the average, which is many steps behind.
Without Rangewatch: loss 2.32 to 0.26 at step 119, 1.58 at step 120, 0.78 at step 140, 0.25 again at step 180: forty steps are lost.
Causes: weight (written outside of the optimizer), eval, optimizer. Right: weights / restore / average / evaluation. Wrong: GradScaler, mask, lower the rate."""
EXPECT = {"cause": ["weight", "eval", "optimizer"], "step": [119, 124], "place": None, "rank": 0,
          "right": "(?i)weight|restor|average|ema|eval|checkpoint|swap|load", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2321); torch.set_num_threads(1)


class Reverser(nn.Module):
    def __init__(self):
        super().__init__()
        self.digit = nn.Embedding(11, 32)
        self.read, self.write = nn.GRU(32, 64, batch_first=True), nn.GRU(32, 64, batch_first=True)
        self.out = nn.Linear(64, 10)

    def forward(self, x, y):
        h = self.read(self.digit(x))[1]
        before = torch.cat((torch.full_like(y[:, :1], 10), y[:, :-1]), 1)
        return self.out(self.write(self.digit(before), h)[0])


model = Reverser()
optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
slow = {k: v.clone() for k, v in model.state_dict().items()}
handle = rangewatch.attach(model, optimizer)


def evaluate(early):
    fast = {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(slow)
    with torch.no_grad():
        x = torch.randint(0, 10, (64, 5))
        accuracy = (model(x, x.flip(1)).argmax(2) == x.flip(1)).float().mean().item()
    if early:
        return accuracy
    model.load_state_dict(fast)
    return accuracy


for step in range(240):
    if step and step % 60 == 0:
        print("accuracy of the slow weights", evaluate(early=step == 120))
    x = torch.randint(0, 10, (64, 5))
    loss = F.cross_entropy(model(x, x.flip(1)).flatten(0, 1), x.flip(1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for k, v in model.state_dict().items():
            slow[k].lerp_(v, 0.005)
    if step % 20 == 0 or 117 < step < 124 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
