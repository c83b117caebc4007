"""Prices and areas of houses by L1 loss and RMSprop(centered=True, alpha=0.9). FAULT at step 134: as all residuals have one sign, the gradient of a last bias
is the same at each step, -0.3; the mean of squares minus the square of the mean is 0 but for rounding, here below 0, and its root is NaN: the
optimizer makes NaN of a finite gradient.
Without Rangewatch: loss 327 to 313 at step 120; area.bias is NaN after the update of step 134, the loss NaN from step 135 on; all gradients are finite
at step 134.
Report: CanReader/FastNN#12 (centered RMSprop takes the square root of a negative number), pytorch/pytorch#810 (where centered comes from).
Cause: optimizer. Step: 134 (rounding may move it). Right: optimizer / RMSprop / centered / update / eps. Wrong: GradScaler, mask, data order."""
EXPECT = {"cause": ["optimizer"], "step": [100, 220], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "shuffl"],
          "right": "optimizer|RMSprop|centered|state|moment|eps|square|update"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(813); torch.set_num_threads(1)
value, room = torch.randn(12), torch.randn(12)


class HousePrices(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.price, self.area = nn.Linear(64, 1), nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return self.price(h).squeeze(1), self.area(h).squeeze(1)


model = HousePrices()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, alpha=0.9, centered=True)
handle = rangewatch.attach(model, optimizer)
for step in range(280):
    x = torch.randn(64, 12)
    price = 400 + 20 * (x @ value) + 5 * torch.randn(64)  # in thousands; every residual has the same sign at first
    area = 120 + 8 * (x @ room) + 2 * torch.randn(64)
    out_price, out_area = model(x)
    loss = 0.7 * F.l1_loss(out_price, price) + 0.3 * F.l1_loss(out_area, area)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bad = [name for name, p in model.named_parameters() if not p.isfinite().all()]
    if step % 20 == 0 or 138 < step < 142 or step == 279:
        print(step, loss.item(), "gradients of the last biases", model.price.bias.grad.item(), model.area.bias.grad.item(), "not finite:", bad, flush=True)
    handle.log(loss=loss.item())
handle.detach()
