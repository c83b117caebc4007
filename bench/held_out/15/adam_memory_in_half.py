"""A net that parts two lines of a spectrum. FAULT at step 100: the state of Adam is saved in float16 and loaded again; squares below 6e-8 are zero (11,869
of them), and the next step divides by almost nothing.
Without Rangewatch: loss 0.094 to 0.0040 at step 99, 0.0036 at step 100, 1.86 at step 101, 0.067 at step 120, 0.0065 at the end.
Cause: optimizer. Step: 100. Right: optimizer / Adam / moments / state. Wrong: GradScaler, mask, NaN in the input."""
EXPECT = {"cause": ["optimizer"], "step": [99, 106], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "NaN in the input"],
          "right": "optimizer|Adam|exp_avg|moment|state|checkpoint|resume"}
import io
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1522); torch.set_num_threads(1)


class Doublet(nn.Module):
    """Parts a mixture of two lines of a spectrum."""
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.line_a, self.line_b = nn.Linear(64, 40), nn.Linear(64, 40)

    def forward(self, x):
        h = self.enc(x)
        return torch.stack((self.line_a(h), self.line_b(h)), 1)


bins = torch.arange(40) / 40


def spectra(n):
    centre = torch.stack((0.05 + 0.4 * torch.rand(n), 0.55 + 0.4 * torch.rand(n)), 1)
    lines = torch.exp(-((bins - centre[..., None]) * 15) ** 2) * (0.5 + torch.rand(n, 2, 1))
    return lines.sum(1) + 0.03 * torch.randn(n, 40), lines


model = Doublet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step == 100:  # saved and loaded again; to save room the state is kept in float16, where squares below 6e-8 are zero
        state = optimizer.state_dict()
        for s in state["state"].values():
            s.update({k: v.half().float() for k, v in s.items() if k != "step"})
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        optimizer.load_state_dict(torch.load(file))
        print("zeros in the squares", sum(int((s["exp_avg_sq"] == 0).sum()) for s in optimizer.state.values()), flush=True)
    x, y = spectra(64)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 106 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
