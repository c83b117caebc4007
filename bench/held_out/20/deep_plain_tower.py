"""A tower of 44 plain linear layers with ReLU that is to tell three kinds of glass by their spectra. FAULT from the start: no residual, no norm and the
default init of nn.Linear; the signal shrinks by the same factor in each layer, and so does the gradient on its way back.
Without Rangewatch: loss 1.08 to 1.12 at each step (ln 3 is 1.099); the gradient of the first layer has a norm of 4e-19, the logits of a batch
differ by 1e-9.
Cause: backward_arithmetic (vanishing gradients), or weight (init), no_gradient. Step: 0. Right: residual / norm / init / vanish. Wrong: clip, lower
the rate, GradScaler."""
EXPECT = {"cause": ["backward_arithmetic", "no_gradient", "weight", "dead_units", "forward_arithmetic"], "step": [0, 160], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "(?i)residual|skip|norm|init|vanish|depth|small", "least": "info"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2003); torch.set_num_threads(1)
lines = torch.randn(3, 30)


class Tower(nn.Module):
    def __init__(self, width=40, depth=44):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(30, width)] + [nn.Linear(width, width) for _ in range(depth - 1)])
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.out(x)


model = Tower()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    y = torch.randint(0, 3, (48,))
    x = lines[y] + 0.7 * torch.randn(48, 30)
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "gradient of layer 0", model.layers[0].weight.grad.norm().item(), "of the last", model.out.weight.grad.norm().item(),
              "spread of logits in the batch", logits.std(0).mean().item(), flush=True)
    optimizer.step()
    handle.log(loss=loss.item())
handle.detach()
