"""A temporal convolution net that forecasts electricity, AdamW, evaluated every 60 steps. FAULT from the evaluation before step 120 on: the
evaluation now also reports the loss of a ternary version: it rounds the weights in place to -max, 0 and max and does not put them back.
Without Rangewatch: loss 0.58 to 0.021 at step 119, 0.44 at step 120, 0.78 at step 180, 1.54 at step 240, each time back near 0.03 fifty steps
later; the evaluation itself says 0.016 and, rounded, 0.37, 0.71, 1.41.
Report: Enderdead/Pytorch_Quantize_impls#10 (eval mode changes the weights, Adam suffers), antspy/quantized_distillation#17.
Cause: eval (or weight). Step: 120. Right: evaluation / weights / restore / in place. Wrong: GradScaler, mask, learning rate."""
EXPECT = {"cause": ["eval", "weight"], "step": [119, 130], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "eval|weight|restor|put back|swap|copy"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(822); torch.set_num_threads(1)


def load_curves(n=24, length=72):
    t = torch.arange(length).float() + torch.randint(0, 24, (n, 1))
    day = torch.sin(6.283 * t / 24) + (0.3 + 0.5 * torch.rand(n, 1)) * torch.sin(6.283 * t / 12 + 1) + 0.5 * torch.sin(6.283 * t / 8 + torch.rand(n, 1))
    return day[:, None] + 0.05 * torch.randn(n, 1, length)


class TCN(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 2, dilation=2 ** i) for i in range(5))
        self.drop, self.out = nn.Dropout(0.05), nn.Conv1d(width, 1, 1)

    def forward(self, x):
        h = self.first(x)
        for i, layer in enumerate(self.layers):
            h = h + self.drop(F.gelu(layer(F.pad(h, (2 ** i, 0)))))
        return self.out(h)


def error(x):
    return F.mse_loss(model(x[..., :-1]), x[..., 1:])


@torch.no_grad()
def evaluate(ternary):
    model.eval()
    result = [error(load_curves()).item()]
    if ternary:
        for p in model.parameters():
            step_size = p.abs().max()
            p.copy_((p / step_size).round() * step_size)
        result.append(error(load_curves()).item())
    model.train()
    return result


model = TCN()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(280):
    if step and step % 60 == 0:
        print("evaluation", evaluate(ternary=step >= 120), flush=True)
    loss = error(load_curves())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 118 < step < 124:
        print(step, loss.item(), flush=True)
handle.detach()
