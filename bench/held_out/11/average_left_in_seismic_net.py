"""A net of 1d convolutions that picks the onset of a quake, with an average of its weights (decay 0.995, from the first step on). FAULT at step 120: for the
validation the averaged weights are copied into the model, and nobody puts the trained ones back; training goes on from the slow average.
Without Rangewatch: loss 4.4 to 0.43 at step 119; 2.88 at step 120 (all weights have jumped there), 1.16 at step 140, 0.46 only at step 200.
Variant of: exchanges: average_of_words_is_left_in_the_model.
Cause: weight (values written outside the optimizer) or eval. Step: 120 or 121. Right: weights / average / copied / restore / outside the optimizer.
Wrong: rate, GradScaler, attention mask."""
EXPECT = {"cause": ["weight", "eval"], "step": [119, 123], "place": None, "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "weight|average|EMA|copied|restore|outside|overwr|load|parameter"}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1105); torch.set_num_threads(1)
time = torch.arange(80)


class OnsetNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(3, 24, 9, padding=4), nn.GELU(), nn.Conv1d(24, 24, 9, padding=4), nn.GELU(), nn.Conv1d(24, 24, 9, padding=4),
                                  nn.GELU())
        self.onset = nn.Conv1d(24, 1, 1)

    def forward(self, x):
        return self.onset(self.body(x))[:, 0]


def quakes(n):
    onset = torch.randint(10, 70, (n,))
    shake = (time >= onset[:, None]).float() * torch.exp(-(time - onset[:, None]).clamp(min=0) / 20)
    return 0.4 * torch.randn(n, 3, 80) + 2 * shake[:, None] * torch.randn(n, 3, 80), onset


model = OnsetNet()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 120:
        model.load_state_dict(average.state_dict())  # to validate it; meant to be undone
        model.eval()
        with torch.no_grad():
            x, onset = quakes(64)
            print("validation", F.cross_entropy(model(x), onset).item())
        model.train()
    x, onset = quakes(32)
    loss = F.cross_entropy(model(x), onset)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.lerp_(fast, 0.005)
    if step % 20 == 0 or 116 < step < 124:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
