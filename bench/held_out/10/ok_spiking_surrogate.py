"""A spiking net for the touch of a finger: neurons fire or do not (a step function forward, a smooth surrogate backward); at first more than half
of the neurons are silent in a whole batch. HEALTHY.
Without Rangewatch: loss 1.61 to 0.0014; 35 of 64 neurons silent in the whole batch at step 0, 9 at step 20, 1 at step 40, 0 or 1 later; a neuron fires at 3%
of the moments at first and at 42% at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1038); torch.set_num_threads(1)
FABRICS, MOMENTS = 5, 20
roughness = torch.rand(FABRICS, 24) * 0.5


class Fire(torch.autograd.Function):
    @staticmethod
    def forward(ctx, volt):
        ctx.save_for_backward(volt)
        return (volt > 0).float()

    @staticmethod
    def backward(ctx, gradient):
        (volt,) = ctx.saved_tensors
        return gradient / (1 + 5 * volt.abs()) ** 2


class SpikingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.again, self.out = nn.Linear(24, 64), nn.Linear(64, 64), nn.Linear(64, FABRICS)
        self.spikes = 0.0

    def forward(self, x):
        volt_a = volt_b = torch.zeros(len(x), 64)
        answer, self.spikes = 0.0, torch.zeros(len(x), 64)
        for t in range(MOMENTS):
            volt_a = 0.8 * volt_a + self.inward(x[:, t])
            fired_a = Fire.apply(volt_a - 1.0)
            volt_a = volt_a - fired_a.detach()
            volt_b = 0.8 * volt_b + 2 * self.again(fired_a)
            fired_b = Fire.apply(volt_b - 1.0)
            volt_b = volt_b - fired_b.detach()
            answer, self.spikes = answer + self.out(fired_b), self.spikes + fired_b.detach()
        return answer / MOMENTS * 4


model = SpikingNet()
optimizer = torch.optim.Adamax(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    fabric = torch.randint(0, FABRICS, (32,))
    x = (torch.rand(32, MOMENTS, 24) < roughness[fabric][:, None]).float()
    loss = F.cross_entropy(model(x), fabric)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 259:
        silent = int((model.spikes.sum(0) == 0).sum())
        print(step, loss.item(), "share of spikes", model.spikes.mean().item() / MOMENTS, "silent in the whole batch", silent, "of 64", flush=True)
    handle.log(loss=loss.item())
handle.detach()
