"""A net wholly in float16 (model.half()) gives the absorbance of a thin film at 24 wavelengths; absorbances are about 1e-4 and there is no loss scale.
FAULT from the first step on: the mean of 24 times 256 squared errors has gradients of 1e-8 at the output, below 6e-8, the smallest number of float16: 0.
The layers stand still, and the mean itself is 0, too.
Without Rangewatch: the loss reads 0 from step 0 on; taken in float32 it is 6.1e-9 at first, 1.0e-9 at step 75 and 9.6e-10 at the end (the bias of the last
layer alone learns); of the first layer's gradient all is 0 and no weight moves; all in float32 it is 1.4e-10 at the end.
Cause: backward_arithmetic (underflow), loss_scale (none), no_gradient or optimizer (lost updates). Step: from 0 on. Right: underflow / loss scale /
GradScaler / float32 / bfloat16 / targets' scale. Wrong: lower the rate, mask, clip."""
EXPECT = {"cause": ["backward_arithmetic", "loss_scale", "no_gradient", "optimizer"], "step": [0, 60], "place": None, "rank": 0, "least": "info",
          "wrong": ["attention mask", "(?i)lower the learning rate"],
          "right": "(?i)underflow|scal|float32|bfloat16|bf16|precision|master"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1807); torch.set_num_threads(1)
basis = torch.randn(5, 24)


class Film(nn.Module):
    def __init__(self):
        super().__init__()
        self.recipe = nn.Linear(5, 40)
        self.inner = nn.Linear(40, 40)
        self.spectrum = nn.Linear(40, 24)
        nn.init.normal_(self.spectrum.weight, std=1e-4)
        nn.init.zeros_(self.spectrum.bias)

    def forward(self, x):
        return self.spectrum(F.gelu(self.inner(F.gelu(self.recipe(x)))))


model = Film().half()
optimizer = torch.optim.SGD(model.parameters(), lr=5.0, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
first = model.recipe.weight.detach().clone()
for step in range(200):
    x = torch.randn(256, 5)
    y = 1e-4 * torch.sigmoid(x @ basis)
    loss = F.mse_loss(model(x.half()), y.half())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 199:
        zero = (model.recipe.weight.grad == 0).float().mean().item()
        true = (model(x.half()).float() - y).square().mean().item()
        moved = int((model.recipe.weight != first).sum())
        print(step, loss.item(), "in float32", true, "of the recipe's gradient 0:", zero, "weights moved", moved, flush=True)
    handle.log(loss=loss.item())
handle.detach()
